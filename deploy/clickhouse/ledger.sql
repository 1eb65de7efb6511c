-- The exchange records of a fleet of sidecars: one row an exchange.
--
-- A writer sends the records as they are and nothing else; ClickHouse takes the columns out of them:
--
--     INSERT INTO foreword.exchanges (record) FORMAT JSONAsString
--
-- with one JSON object a line as the body. A column that a later version adds is filled for old rows too
-- (ALTER TABLE .. ADD COLUMN .. MATERIALIZED ..), because the record stays whole.
--
-- ReplacingMergeTree: a writer that got no answer sends its batch again, and the batch may have arrived both times. Rows
-- of one time and request id are one exchange and become one row when parts merge; `foreword doctor` counts each request
-- id once however far merging has come, and so must a query that counts (FINAL, or by request_id).

CREATE DATABASE IF NOT EXISTS foreword;

CREATE TABLE IF NOT EXISTS foreword.exchanges
(
    record String CODEC(ZSTD(3)),

    v UInt16 MATERIALIZED JSONExtractUInt(record, 'v'),
    request_id String MATERIALIZED JSONExtractString(record, 'request_id'),
    time DateTime64(3, 'UTC') MATERIALIZED fromUnixTimestamp64Milli(toInt64(round(JSONExtractFloat(record, 'time') * 1000)), 'UTC'),
    route LowCardinality(String) MATERIALIZED JSONExtractString(record, 'route'),
    entry LowCardinality(String) MATERIALIZED JSONExtractString(record, 'entry'),
    client LowCardinality(String) MATERIALIZED JSONExtractString(record, 'client'),
    client_version LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'client_version', 'Nullable(String)'),
    model LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'model', 'Nullable(String)'),
    upstream_model LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'upstream_model', 'Nullable(String)'),
    engine LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'engine', 'Nullable(String)'),
    session Nullable(String) MATERIALIZED JSONExtract(record, 'session', 'Nullable(String)'),
    line Nullable(UInt64) MATERIALIZED JSONExtract(record, 'line', 'Nullable(UInt64)'),
    turn Nullable(UInt64) MATERIALIZED JSONExtract(record, 'turn', 'Nullable(UInt64)'),
    status UInt16 MATERIALIZED JSONExtractUInt(record, 'status'),
    outcome LowCardinality(String) MATERIALIZED JSONExtractString(record, 'outcome'),
    fault LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'fault', 'kind', 'Nullable(String)'),
    streamed_ttft Nullable(Float64) MATERIALIZED if(JSONExtractBool(record, 'stream'), JSONExtract(record, 'ttft_seconds', 'Nullable(Float64)'), NULL),
    prompt_tokens Nullable(UInt64) MATERIALIZED JSONExtract(record, 'usage', 'prompt_tokens', 'Nullable(UInt64)'),
    cached_tokens Nullable(UInt64) MATERIALIZED JSONExtract(record, 'usage', 'cached_tokens', 'Nullable(UInt64)'),
    told_context Nullable(UInt64) MATERIALIZED JSONExtract(record, 'told', 'input_tokens', 'Nullable(UInt64)')
        + JSONExtractUInt(record, 'told', 'cache_creation_input_tokens')
        + JSONExtractUInt(record, 'told', 'cache_read_input_tokens'),
    verdict LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'verdict', 'name', 'Nullable(String)'),
    expected Nullable(UInt64) MATERIALIZED JSONExtract(record, 'verdict', 'expected', 'Nullable(UInt64)'),
    shared Nullable(UInt64) MATERIALIZED JSONExtract(record, 'verdict', 'shared', 'Nullable(UInt64)'),
    lost Nullable(UInt64) MATERIALIZED JSONExtract(record, 'verdict', 'lost', 'Nullable(UInt64)'),
    path Nullable(String) MATERIALIZED JSONExtract(record, 'verdict', 'path', 'Nullable(String)'),
    class LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'verdict', 'class', 'Nullable(String)'),
    kind LowCardinality(Nullable(String)) MATERIALIZED JSONExtract(record, 'verdict', 'kind', 'Nullable(String)'),
    prompt_bytes Nullable(UInt64) MATERIALIZED JSONExtract(record, 'prompt', 'bytes', 'Nullable(UInt64)'),
    head Array(Tuple(path String, class String, bytes UInt64, digest String))
        MATERIALIZED JSONExtract(record, 'prompt', 'head',
            'Array(Tuple(path String, class String, bytes UInt64, digest String))'),
    shadow Map(String, UInt64) MATERIALIZED JSONExtract(record, 'shadow', 'Map(String, UInt64)')
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (time, request_id);
