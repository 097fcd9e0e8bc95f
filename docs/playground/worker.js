// Runs Python in a thread of its own, so that typing never waits for it.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import createModule from "./pyodide/pyodide.asm.mjs";

const here = (name) => new URL(name, import.meta.url).href;
const indexURL = here("pyodide/");

async function start() {
  const [archive, wheels] = await Promise.all([
    fetch(here("playground.zip")).then((reply) => reply.arrayBuffer()),
    fetch(here("wheels.json")).then((reply) => reply.json()),
  ]);
  const python = wheels.length ? await loadPyodide({ indexURL }) : await resume();
  if (wheels.length) await python.loadPackage(wheels.map(here));
  python.unpackArchive(archive, "zip");
  return python.pyimport("answer");
}

// Starts with the memory of a Python that has loaded the language, or from nothing if that fails.
async function resume() {
  try {
    const reply = await fetch(here("snapshot.gz"));
    const stream = reply.body.pipeThrough(new DecompressionStream("gzip"));
    const snapshot = new Uint8Array(await new Response(stream).arrayBuffer());
    const createPyodideModule = (settings) => {
      const instantiate = settings.instantiateWasm;
      settings.instantiateWasm = (imports, done) => instantiate(imports, (instance, module) => {
        const { memory } = instance.exports; // Pyodide does not make room for larger snapshots
        const missing = snapshot.length - memory.buffer.byteLength;
        if (missing > 0) memory.grow(Math.ceil(missing / 65536));
        return done(instance, module);
      });
      return createModule(settings);
    };
    return await loadPyodide({ indexURL, _loadSnapshot: snapshot, createPyodideModule });
  } catch (error) {
    console.warn("starting without the snapshot", error);
    return loadPyodide({ indexURL });
  }
}

const ready = start();

self.onmessage = async ({ data: { id, name, values } }) => {
  try {
    const answer = await ready;
    self.postMessage({ id, value: answer[name](...values) });
  } catch (error) {
    self.postMessage({ id, error: String(error.message || error) });
  }
};
