// Node loads this file before the script of an agent: it turns the compile cache on, read-only.
//
// Node writes modules that are new to a cache when the process ends. What an agent wrote must not
// be executed by the next one. So a folder that can be written is not used itself: Node gets a
// private folder with links to the entries, which is removed before Node would write.
"use strict";
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { enableCompileCache } = require("node:module");

// Else processes that the agent starts with fork() would load this file too.
const position = process.execArgv.indexOf(__filename);
if (position > 0) process.execArgv.splice(position - 1, 2);

function isWritable(folder) {
  try {
    fs.accessSync(folder, fs.constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

function links(entries) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "compile-cache-"));
  process.on("exit", () => fs.rmSync(folder, { recursive: true, force: true }));
  for (const version of fs.readdirSync(entries)) {
    fs.mkdirSync(path.join(folder, version));
    for (const name of fs.readdirSync(path.join(entries, version))) {
      fs.symlinkSync(path.join(entries, version, name), path.join(folder, version, name));
    }
  }
  return folder;
}

try {
  const entries = path.join(__dirname, "entries");
  const isUsable = fs.existsSync(entries) && enableCompileCache !== undefined;
  if (isUsable) enableCompileCache(isWritable(entries) ? links(entries) : entries);
} catch {
  // Without the cache the agent only starts more slowly.
}
