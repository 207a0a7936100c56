// Reads responses of models with the code of pi, and writes the tool calls that it finds as JSON.
// Arguments: the folder with pi's packages, and a file with [{wire, body}], bodies in base64.

import { readFileSync, writeSync } from "node:fs";

const [packages, file] = process.argv.slice(2);
const load = (name) => import(`${packages}/@earendil-works/pi-ai/dist/providers/${name}.js`);
const readers = {
  gemini: ["google-generative-ai", (await load("google")).streamGoogle],
  anthropic: ["anthropic-messages", (await load("anthropic")).streamAnthropic],
  openai: ["openai-responses", (await load("openai-responses")).streamOpenAIResponses],
  "openai-chat": ["openai-completions", (await load("openai-completions")).streamOpenAICompletions],
};

async function read(wire, body) {
  const [api, stream] = readers[wire];
  const headers = { "content-type": "text/event-stream" };
  globalThis.fetch = async () => new Response(body, { status: 200, headers });
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
  const limits = { contextWindow: 1000, maxTokens: 100, reasoning: false, input: ["text"] };
  const model = { id: "m", name: "m", provider: "p", baseUrl: "http://127.0.0.1:1", api, cost, ...limits };
  const context = { messages: [{ role: "user", content: "hi", timestamp: 0 }], tools: [] };
  const calls = [];
  try {
    for await (const event of stream(model, context, { apiKey: "k", maxRetries: 0 })) {
      if (event.type === "done") {
        calls.push(...event.message.content.filter((block) => block.type === "toolCall"));
      }
    }
  } catch {
    return [];  // pi makes no call of a response that it cannot read
  }
  return calls.map((call) => [call.name, call.arguments]);
}

console.log = console.warn = console.error = () => {};
const found = [];
for (const { wire, body } of JSON.parse(readFileSync(file, "utf8"))) {
  found.push(await read(wire, Buffer.from(body, "base64")));
}
writeSync(1, JSON.stringify(found));
