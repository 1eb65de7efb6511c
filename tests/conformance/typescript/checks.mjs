// Runs named checks one after the other and tells of each on its own line; the exit status says whether all held.

import assert from 'node:assert/strict';

const { BASE_URL: baseURL, ENGINE_URL: engineURL } = process.env;
assert(baseURL && engineURL, 'BASE_URL is the sidecar, ENGINE_URL the stand-in engine behind it');

export { assert, baseURL };

/** What the engine is to say, for requests that bring a script of their own. */
export const say = (text, more = {}) => ({ vllm_xargs: { say: text, ...more } });

const post = (path, body) => {
  const headers = { 'content-type': 'application/json' };
  return fetch(engineURL + path, { method: 'POST', headers, body: JSON.stringify(body) });
};

/** Scripts the next answers, for requests that bring none. What a failed check has left is used up first. */
export async function script(...next) {
  while ((await (await post('/standin/script', { next: [] })).json()).queued > 0) {
    await post('/v1/chat/completions', { messages: [{ role: 'user', content: 'Hi' }] });
  }
  assert.equal((await post('/standin/script', { next })).status, 200);
}

/** The body of the engine's last request. */
export const last = async () => (await fetch(`${engineURL}/standin/last`)).json();

/** The error that `work` ends in. */
export async function caught(work) {
  try {
    await work();
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: 'nothing was thrown' });
}

/** The milliseconds that `work` takes. */
export async function timed(work) {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

export async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      process.exitCode = 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    }
  }
}
