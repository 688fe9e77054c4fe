// Runs operations of an SDK one after another and prints a line of JSON for each: its name, whether it did what its
// body asserts, what it said, and how long it took.  An operation that does not end within its time has failed.
"use strict";
const assert = require("node:assert/strict");

const LIMIT_MS = 30_000;

async function run(operations, limitMs = LIMIT_MS) {
  process.on("uncaughtException", (error) => print("uncaught", false, error.stack, 0));
  for (const [name, body] of Object.entries(operations)) {
    const started = Date.now();
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`did not end within ${limitMs} ms`)), limitMs);
    });
    try {
      const said = await Promise.race([body(), late]);
      print(name, true, said ?? null, Date.now() - started);
    } catch (error) {
      print(name, false, `${error.code ?? error.name}: ${error.message}`, Date.now() - started);
    } finally {
      clearTimeout(timer);
    }
  }
  process.exit(0);
}

function print(name, ok, said, ms) {
  process.stdout.write(JSON.stringify({ name, ok, said, ms }) + "\n");
}

// The code of the error that a promise is rejected with; one that is kept is a failure.
async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error.code ?? error.name;
  }
  throw new Error("was not refused");
}

module.exports = { assert, refusal, run };
