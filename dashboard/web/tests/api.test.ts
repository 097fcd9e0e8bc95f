import assert from "node:assert/strict";
import { suite, test } from "node:test";
import "./browser.ts";
import { loadJson } from "../src/api.ts";
import { isAbort } from "../src/kit/dom.ts";

suite("questions to a server", () => {
  const failing = (error: Error) => () => Promise.reject(error);

  test("that has ended say so, and what to do", async (context) => {
    context.mock.method(globalThis, "fetch", failing(new TypeError("Failed to fetch")));
    await assert.rejects(loadJson("/api/changes"), /the server does not answer; start `dcpm dashboard` again and reload/);
  });

  test("that nobody waits for any more stay aborts", async (context) => {
    context.mock.method(globalThis, "fetch", failing(new DOMException("", "AbortError")));
    await assert.rejects(loadJson("/api/changes"), isAbort);
  });
});
