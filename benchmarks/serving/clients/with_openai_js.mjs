// npm openai: chat, streaming, structured output and tools.
import assert from "node:assert";
import { createRequire } from "node:module";

const OpenAI = createRequire(process.env.NODE_PATH + "/")("openai").OpenAI;
const { PACELINE_URL, PACELINE_MODEL: model, PACELINE_TOOLS } = process.env;
const client = new OpenAI({ baseURL: PACELINE_URL + "/v1", apiKey: "x", maxRetries: 0 });
const messages = [{ role: "user", content: "Name a river." }];
const fixed = { model, messages, seed: 7, max_tokens: 24 };
const ask = (more) => client.chat.completions.create({ ...fixed, ...more });

const whole = (await ask({})).choices[0].message.content;
let text = "";
for await (const chunk of await ask({ stream: true })) text += chunk.choices[0].delta.content ?? "";
assert.strictEqual(text, whole);
console.log("chat, streaming");

const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const json_schema = { name: "c", schema, strict: true };
const formed = await ask({ response_format: { type: "json_schema", json_schema } });
assert.ok(["Paris", "Rome"].includes(JSON.parse(formed.choices[0].message.content).city));
console.log("structured output");

if (PACELINE_TOOLS !== "0") {
  const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
  const called = await ask({ tools, tool_choice: "required", max_tokens: 400 });
  const { name, arguments: args } = called.choices[0].message.tool_calls[0].function;
  assert.strictEqual(name, "weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(args).city));
  console.log("tools");
}
