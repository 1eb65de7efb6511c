// OpenAI's TypeScript SDK on a sidecar in front of the stand-in engine.

import OpenAI from 'openai';

import { assert, baseURL, caught, last, run, say, script, timed } from './checks.mjs';

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'sk-conformance', maxRetries: 0, timeout: 20_000 });
const hi = { model: 'any', messages: [{ role: 'user', content: 'Hi' }] };
const parameters = { type: 'object', properties: { path: { type: 'string' } } };
const look = { type: 'function', function: { name: 'look', description: 'Looks at a file', parameters } };
const called = (name, input) => `<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`;

await run({
  async 'text in one piece'() {
    const { data, response } = await client.chat.completions
      .create({ ...hi, ...say('</think>Hello, wörld 😀.') })
      .withResponse();
    assert.equal(data.choices[0].message.content, 'Hello, wörld 😀.');
    assert.equal(data.model, 'any');
    assert.match(response.headers.get('request-id'), /^req_/);
  },

  async 'text and parallel tools through the accumulator'() {
    const said = `Hm.</think>Looking.${called('look', '{"path": "/a\\"b"}')}\n${called('look', '{}')}`;
    let heard = '';
    const stream = client.chat.completions.stream({ ...hi, tools: [look], stream_options: { include_usage: true }, ...say(said) });
    stream.on('content', (delta) => (heard += delta));
    const { choices, usage } = await stream.finalChatCompletion();
    assert.equal(heard, 'Looking.');
    assert.equal(choices[0].finish_reason, 'tool_calls');
    const calls = choices[0].message.tool_calls.map((made) => JSON.parse(made.function.arguments));
    assert.deepEqual(calls, [{ path: '/a"b' }, {}]);
    assert(usage.prompt_tokens > 0);
  },

  async 'usage stays out of a stream that did not ask for it'() {
    const stream = await client.chat.completions.create({ ...hi, stream: true, ...say('</think>Hello.') });
    for await (const chunk of stream) {
      assert.equal(chunk.choices.length, 1);
      assert.equal(chunk.usage ?? null, null);
    }
    assert.equal((await last()).stream_options.include_usage, true);
  },

  async 'structured output'() {
    const schema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'], additionalProperties: false };
    const response_format = { type: 'json_schema', json_schema: { name: 'city', strict: true, schema } };
    await client.chat.completions.parse({ ...hi, response_format, ...say('</think>{"name": "Paris"}') });
    assert.deepEqual((await last()).response_format, response_format);
  },

  async 'the agent loop of the SDK'() {
    const seen = [];
    const runnable = { ...look.function, parse: JSON.parse, function: ({ path }) => `${seen.push(path)} seen` };
    await script(
      { say: `Hm.</think>${called('look', '{"path": "/a"}')}` },
      { say: `So.</think>${called('look', '{"path": "/b"}')}` },
      { say: 'Well.</think>Seen both.' },
    );
    const runner = client.chat.completions.runTools({ ...hi, stream: true, tools: [{ type: 'function', function: runnable }] });
    assert.equal(await runner.finalContent(), 'Seen both.');
    assert.deepEqual(seen, ['/a', '/b']);
  },

  async 'each status has its error class'() {
    for (const [status, type] of [
      [400, OpenAI.BadRequestError],
      [401, OpenAI.AuthenticationError],
      [404, OpenAI.NotFoundError],
      [429, OpenAI.RateLimitError],
      [500, OpenAI.InternalServerError],
      [503, OpenAI.InternalServerError],
    ]) {
      const body = { ...hi, ...say('', { fail: { status, message: 'own words' } }) };
      for (const how of [
        () => client.chat.completions.create(body),
        () => client.chat.completions.stream(body).finalChatCompletion(),
      ]) {
        const error = await caught(how);
        assert(error instanceof type, error.stack);
        assert.match(error.message, /own words/);
      }
    }
  },

  async 'retry-after is obeyed'() {
    await script({ fail: { status: 503, headers: { 'retry-after': '1' } } }, { say: '</think>Hello.' });
    const took = await timed(async () => {
      const answer = await client.withOptions({ maxRetries: 2 }).chat.completions.create(hi);
      assert.equal(answer.choices[0].message.content, 'Hello.');
    });
    assert(took >= 1000 && took < 3000, `${took} ms`);
  },

  async 'a stream that is cut'() {
    for (const mishap of [{ cut_after: 3 }, { cut_after: 3, cut: 'rst' }, { end_after: 3 }, { error_after: 3 }]) {
      const stream = client.chat.completions.stream({ ...hi, ...say('</think>One two three four five', mishap) });
      assert((await caught(() => stream.finalChatCompletion())) instanceof OpenAI.APIError);
    }
  },

  async 'a client that leaves'() {
    const body = { ...hi, ...say('</think>One two three', { stall_after: 2, stall_seconds: 10 }) };
    const stream = client.chat.completions.stream(body);
    stream.on('content', () => stream.abort());
    const took = await timed(async () => {
      assert((await caught(() => stream.finalChatCompletion())) instanceof OpenAI.APIUserAbortError);
    });
    assert(took < 5000, `${took} ms`);
  },

  async 'the time limit of the client'() {
    const slow = { ...hi, ...say('</think>Late.', { headers_delay: 10 }) };
    const error = await caught(() => client.chat.completions.create(slow, { timeout: 300 }));
    assert(error instanceof OpenAI.APIConnectionTimeoutError, error.stack);
  },

  async 'completions and models'() {
    const answer = await client.completions.create({ model: 'any', prompt: 'Once', max_tokens: 9, ...say(' upon a time') });
    assert.equal(answer.choices[0].text, ' upon a time');
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ['stand-in']);
  },
});
