// Anthropic's TypeScript SDK on a sidecar in front of the stand-in engine.

import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { jsonSchemaOutputFormat } from '@anthropic-ai/sdk/helpers/json-schema';

import { assert, baseURL, caught, last, run, say, script, timed } from './checks.mjs';

const client = new Anthropic({ baseURL, apiKey: 'sk-conformance', maxRetries: 0, timeout: 20_000 });
const hi = { model: 'any', max_tokens: 1000, messages: [{ role: 'user', content: 'Hi' }] };
const look = {
  name: 'look',
  description: 'Looks at a file',
  input_schema: { type: 'object', properties: { path: { type: 'string' } } },
};
const now = { name: 'now', input_schema: { type: 'object', properties: {} } };
const called = (name, input) => `<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`;

await run({
  async 'text in one piece'() {
    const message = await client.messages.create({ ...hi, ...say('</think>Hello, wörld 😀.') });
    assert.deepEqual(message.content.map((block) => block.text), ['Hello, wörld 😀.']);
    assert.equal(message.stop_reason, 'end_turn');
    assert.equal(message.model, 'any');
    assert.match(message._request_id, /^req_/);
  },

  async 'thinking, text and parallel tools through the accumulator'() {
    const said = `Hm.</think>Looking.${called('look', '{"path": "/a\\"b"}')}\n${called('now', '{}')}`;
    const heard = { text: '', thinking: '', json: '' };
    const stream = client.messages.stream({ ...hi, tools: [look, now], ...say(said) });
    stream.on('text', (delta) => (heard.text += delta));
    stream.on('thinking', (delta) => (heard.thinking += delta));
    stream.on('inputJson', (delta) => (heard.json += delta));
    const message = await stream.finalMessage();
    assert.deepEqual(message.content.map((block) => block.type), ['thinking', 'text', 'tool_use', 'tool_use']);
    assert.deepEqual(message.content.slice(2).map((block) => block.input), [{ path: '/a"b' }, {}]);
    assert.equal(message.stop_reason, 'tool_use');
    assert.equal(heard.thinking, 'Hm.');
    assert.equal(heard.text, 'Looking.');
    assert.deepEqual(JSON.parse(heard.json.slice(0, heard.json.indexOf('}') + 1)), { path: '/a"b' });
    assert.match(stream.request_id, /^req_/);
  },

  async 'a session reuses its prompt and its answers'() {
    const system = 'You are a coding agent. '.repeat(400);
    const messages = [{ role: 'user', content: 'Look around.' }];
    const thought = `<think>${'One more thing. '.repeat(60)}</think>`;
    let known = 0;
    for (const said of [`${thought}Yes.${called('look', '{"path": "/é"}')}`, `${thought}Done.`, `${thought}Still done.`]) {
      const body = { ...hi, system, tools: [look, now], messages, ...say(said) };
      const { content, usage } = await client.messages.stream(body).finalMessage();
      assert(usage.cache_read_input_tokens >= Math.floor(known / 64) * 64, `${usage.cache_read_input_tokens} of ${known}`);
      known = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens + usage.output_tokens - 1;
      messages.push({ role: 'assistant', content });
      const calls = content.filter((block) => block.type === 'tool_use');
      const results = calls.map((block) => ({ type: 'tool_result', tool_use_id: block.id, content: 'Seen.' }));
      messages.push({ role: 'user', content: results.length ? results : 'And now?' });
    }
  },

  async 'structured output'() {
    const schema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'], additionalProperties: false };
    const format = jsonSchemaOutputFormat(schema);
    const message = await client.messages.parse({ ...hi, output_config: { format }, ...say('</think>{"name": "Paris"}') });
    assert.deepEqual(message.parsed_output, { name: 'Paris' });
    assert.equal((await last()).response_format.type, 'json_schema');
  },

  async 'the agent loop of the SDK'() {
    const seen = [];
    const tool = betaTool({
      name: 'look',
      description: 'Looks at a file',
      inputSchema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
      run: ({ path }) => `${seen.push(path)} seen`,
    });
    await script(
      { say: `Hm.</think>${called('look', '{"path": "/a"}')}` },
      { say: `So.</think>${called('look', '{"path": "/b"}')}` },
      { say: 'Well.</think>Seen both.' },
    );
    const message = await client.beta.messages.toolRunner({ ...hi, tools: [tool] });
    assert.deepEqual(seen, ['/a', '/b']);
    assert.equal(message.content.at(-1).text, 'Seen both.');
    assert.deepEqual((await last()).messages.map(({ role }) => role), ['user', 'assistant', 'tool', 'assistant', 'tool']);
  },

  async 'each status has its error class'() {
    for (const [status, type, kind] of [
      [400, Anthropic.BadRequestError, 'invalid_request_error'],
      [401, Anthropic.AuthenticationError, 'authentication_error'],
      [404, Anthropic.NotFoundError, 'not_found_error'],
      [429, Anthropic.RateLimitError, 'rate_limit_error'],
      [500, Anthropic.InternalServerError, 'api_error'],
      [503, Anthropic.InternalServerError, 'overloaded_error'],
    ]) {
      for (const how of [
        (body) => client.messages.create(body),
        (body) => client.messages.stream(body).finalMessage(),
      ]) {
        const error = await caught(() => how({ ...hi, ...say('', { fail: { status, message: 'own words' } }) }));
        assert(error instanceof type, error.stack);
        assert.equal(error.type, kind);
        assert.match(error.message, /own words/);
        assert.match(error.requestID, /^req_/);
      }
    }
  },

  async 'retry-after is obeyed'() {
    await script({ fail: { status: 429, headers: { 'retry-after': '1' } } }, { say: '</think>Hello.' });
    const patient = client.withOptions({ maxRetries: 2 });
    const took = await timed(async () => {
      const { data, response } = await patient.messages.create(hi).withResponse();
      assert.equal(data.content[0].text, 'Hello.');
      assert.equal(response.status, 200);
    });
    assert(took >= 1000 && took < 3000, `${took} ms`);
  },

  async 'an engine that dies in mid stream'() {
    const stream = client.messages.stream({ ...hi, ...say('</think>One two three four', { say_raise_at: 4 }) });
    assert((await caught(() => stream.finalMessage())) instanceof Anthropic.APIError);
  },

  async 'a stream that is cut'() {
    for (const mishap of [{ cut_after: 3 }, { cut_after: 3, cut: 'rst' }, { end_after: 3 }]) {
      const stream = client.messages.stream({ ...hi, ...say('</think>One two three four five', mishap) });
      assert((await caught(() => stream.finalMessage())) instanceof Anthropic.APIError);
    }
  },

  async 'a client that leaves'() {
    const stream = client.messages.stream({ ...hi, ...say('</think>One two three', { stall_after: 2, stall_seconds: 10 }) });
    stream.on('text', () => stream.abort());
    const took = await timed(async () => {
      assert((await caught(() => stream.finalMessage())) instanceof Anthropic.APIUserAbortError);
    });
    assert(took < 5000, `${took} ms`);
  },

  async 'the time limit of the client'() {
    const slow = { ...hi, ...say('</think>Late.', { headers_delay: 10 }) };
    const error = await caught(() => client.messages.create(slow, { timeout: 300 }));
    assert(error instanceof Anthropic.APIConnectionTimeoutError, error.stack);
  },

  async 'count_tokens and models'() {
    assert((await client.messages.countTokens({ model: 'any', messages: hi.messages })).input_tokens > 0);
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ['stand-in']);
  },
});
