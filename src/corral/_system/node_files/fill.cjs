// Node loads this file before the script of an agent, in the run that fills its compile cache.
"use strict";
const { join } = require("node:path");
const { enableCompileCache, flushCompileCache } = require("node:module");

const position = process.execArgv.indexOf(__filename);
if (position > 0) process.execArgv.splice(position - 1, 2);
enableCompileCache(join(__dirname, "entries"));
// An agent that is ended by a signal would write nothing. Node 22.1 has no such function.
if (flushCompileCache !== undefined) setInterval(flushCompileCache, 250).unref();
