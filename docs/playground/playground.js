// The page: sends the text to Python, shows what comes back. Its state lives in the address.
const at = (id) => document.getElementById(id);
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
worker.onmessage = ({ data }) => {
  const [resolve, reject] = waiting.get(data.id);
  waiting.delete(data.id);
  if (data.error === undefined) resolve(data.value);
  else reject(new Error(data.error));
};
worker.onerror = () => state("Python did not load: is this page served over HTTP?");

let calls = 0;
function ask(name, ...values) {
  const id = ++calls;
  return new Promise((resolve, reject) => {
    waiting.set(id, [resolve, reject]);
    worker.postMessage({ id, name, values });
  });
}

const FIRST = `# Several answers to one question, which do not see each other.
segment part = question[question_len] answer[answer_lens]*

mask mine = causal and (k in question or same(answer))

sample small(question_len = 8, answer_lens = [12, 7, 10])
check mine implies causal
`;
const LEAK = `# The words "causal and" are missing: what does an early token see?
segment part = question[question_len] answer[answer_lens]*

mask leaky = k in question or same(answer)
`;
const EXAMPLES = new Map([["shared question", FIRST], ["a leak", LEAK]]);

function state(text) {
  at("state").textContent = text;
}

// ---- the address ----

function write_address() {
  const fields = { text: at("text").value, mask: at("call").value, sample: at("sample").value };
  const given = Object.entries(fields).filter(([, value]) => value);
  history.replaceState(null, "", `#${new URLSearchParams(given)}`);
}

function read_address() {
  const given = new URLSearchParams(location.hash.slice(1));
  at("text").value = given.get("text") ?? FIRST;
  at("call").value = given.get("mask") ?? "";
  at("sample").value = given.get("sample") ?? "";
}

// ---- asking ----

let is_busy = false;
let is_stale = false;
let marked = null; // the pair of a failing sample
let last = null; // what is drawn

async function refresh() {
  show_marks([]);
  if (is_busy) {
    is_stale = true;
    return;
  }
  is_busy = true;
  do {
    is_stale = false;
    const text = at("text").value;
    try {
      const found = JSON.parse(await ask("answer", text, at("sample").value, at("call").value));
      if (text === at("text").value) show(found);
      state("");
    } catch (error) {
      state(error.message.split("\n").filter(Boolean).at(-1));
    }
  } while (is_stale);
  is_busy = false;
}

let timer;
function later() {
  marked = null;
  clearTimeout(timer);
  timer = setTimeout(() => {
    write_address();
    refresh();
  }, 150);
}

// ---- showing ----

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function show(found) {
  at("findings").replaceChildren(...found.findings?.map(finding) ?? []);
  if (found.problem) {
    at("findings").append(element("div", { className: "finding" }, element("p", { textContent: found.problem })));
  }
  show_marks(found.findings ?? []);
  at("masks").replaceChildren(...(found.masks ?? []).map((value) => element("option", { value })));
  const verdicts = (found.verdicts ?? []).map((v) => element(
    "li", {}, element("b", { className: v.outcome, textContent: v.outcome }), ` ${v.what}`,
    v.outcome === "tested" ? ` (on ${v.samples} samples)` : "", v.reason ? `: ${v.reason}` : "",
  ));
  at("verdicts").replaceChildren(...verdicts);
  document.body.dataset.drawn = String(Boolean(found.rows)); // else the picture is an old one
  if (found.rows) draw(found);
}

function finding(found) {
  const box = element("div", { className: `finding ${found.severity}` });
  box.append(element("p", { textContent: `${found.code}, line ${found.line}: ${found.message}` }));
  if (found.hint) box.append(element("p", { className: "hint", textContent: found.hint }));
  if (found.fix) {
    const mend = element("button", { type: "button", textContent: `Fix: ${found.fix.title}` });
    mend.onclick = () => {
      let text = [...at("text").value]; // Python counts code points
      for (const [start, end, put] of found.fix.edits.toSorted((a, b) => b[0] - a[0])) {
        text.splice(start, end - start, ...put);
      }
      at("text").value = text.join("");
      later();
    };
    box.append(mend);
  }
  if (found.failing) {
    const look = element("button", { type: "button", textContent: "Show this sample" });
    look.onclick = () => {
      at("sample").value = found.failing.sample;
      later();
      marked = found.failing;
    };
    box.append(look);
  }
  return box;
}

function show_marks(findings) {
  const text = [...at("text").value];
  const parts = [];
  let done = 0;
  for (const { start, end, severity } of findings.toSorted((a, b) => a.start - b.start)) {
    if (start < done) continue;
    parts.push(text.slice(done, start).join(""));
    const shown = text.slice(start, Math.max(end, start + 1)).join("") || " ";
    parts.push(element("mark", { className: severity, textContent: shown }));
    done = Math.max(end, start + 1);
  }
  at("marks").replaceChildren(...parts, `${text.slice(done).join("")}\n`);
  scroll_marks();
}

function scroll_marks() {
  at("marks").scrollTop = at("text").scrollTop;
  at("marks").scrollLeft = at("text").scrollLeft;
}

function draw(found) {
  last = found;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const { tokens: n, keys } = found;
  const cell = Math.min(64, Math.max(1, Math.floor(1152 / Math.max(n, keys, 1))));
  const canvas = at("picture");
  canvas.width = Math.max(1, keys * cell);
  canvas.height = Math.max(1, n * cell);
  canvas.style.maxWidth = `${canvas.width / 2}px`;
  canvas.style.imageRendering = cell > 2 ? "auto" : "pixelated";
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("--unseen");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const gap = cell >= 12 ? 2 : 0;
  pen.fillStyle = colour("--seen");
  found.rows.forEach((row, q) => {
    for (let k = 0; k < keys; k++) {
      if (row[k] === "#") pen.fillRect(k * cell, q * cell, cell - gap, cell - gap);
    }
  });
  pen.strokeStyle = colour("--quiet");
  pen.lineWidth = 2;
  const line = (...ends) => {
    pen.beginPath();
    pen.moveTo(ends[0] * cell, ends[1] * cell);
    pen.lineTo(ends[2] * cell, ends[3] * cell);
    pen.stroke();
  };
  for (const { start } of found.parts.k) if (start) line(start, 0, start, n);
  for (const { start } of found.parts.q) if (start) line(0, start, keys, start);
  if (marked) {
    pen.strokeStyle = colour("--bad");
    pen.lineWidth = Math.max(3, cell / 10);
    const [k, width] = marked.k === null ? [0, keys] : [marked.k, 1];
    pen.strokeRect(k * cell, marked.q * cell, width * cell, cell);
  }
  const bar = found.parts.k.filter((part) => part.segment === found.parts.k[0].segment);
  at("parts").style.maxWidth = canvas.style.maxWidth;
  at("parts").replaceChildren(...bar.map(({ name, start, end }) => {
    const label = element("span", { textContent: name, title: `${name}: tokens ${start} to ${end - 1}` });
    label.style.left = `${(100 * start) / keys}%`;
    label.style.width = `${(100 * (end - start)) / keys}%`;
    return label;
  }));
  const size_of = n === keys ? `${n} tokens` : `${n} queries and ${keys} keys`;
  canvas.setAttribute("aria-label", `${found.mask} on ${size_of}: ${found.pairs} visible pairs, ${found.share}`);
  at("caption").textContent = `${found.mask} on ${found.sample}. Rows are queries, columns are keys.`;
  const { size, full, partial, all } = found.blocks;
  const figures = [
    ["Visible pairs", `${found.pairs.toLocaleString("en")}, ${found.share}`],
    n === keys ? ["Tokens", n] : ["Queries, keys", `${n}, ${keys}`],
    ["Look-ahead", found.ahead === null ? "the sequences do not compare" : found.ahead ? `${found.ahead.toLocaleString("en")} of the pairs` : "none"],
    ["Tokens that see nothing", found.blind || "none"],
    [`Blocks of ${size} × ${size}`, `${full} full, ${partial} partial, ${all - full - partial} of ${all} empty`],
  ];
  at("figures").replaceChildren(...figures.flatMap(([name, value]) => [
    element("dt", { textContent: name }), element("dd", { textContent: value }),
  ]));
}

function describe(event) {
  if (!last?.tokens || !last.keys) return;
  const box = at("picture").getBoundingClientRect();
  const place = (share, size) => Math.min(size - 1, Math.max(0, Math.floor(share * size)));
  const q = place((event.clientY - box.top) / box.height, last.tokens);
  const k = place((event.clientX - box.left) / box.width, last.keys);
  const name = (side, token) => {
    const parts = last.parts[side].filter((p) => p.start <= token && token < p.end).map((p) => p.name).join(", ");
    return `${side} = ${token}${parts ? ` (${parts})` : ""}`;
  };
  at("caption").textContent = `${name("q", q)}, ${name("k", k)}: ${last.rows[q][k] === "#" ? "seen" : "not seen"}`;
}

// ---- controls ----

at("text").addEventListener("input", later);
at("text").addEventListener("scroll", scroll_marks);
at("call").addEventListener("input", later);
at("sample").addEventListener("input", later);
at("picture").addEventListener("pointermove", describe);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && draw(last));
addEventListener("hashchange", () => {
  read_address();
  refresh();
});
at("format").onclick = async () => {
  at("text").value = await ask("formatted", at("text").value);
  later();
};
at("share").onclick = async () => {
  write_address();
  try {
    await navigator.clipboard.writeText(location.href);
    state("Link copied.");
  } catch {
    state("The address of this page is the link.");
  }
};
at("examples").onchange = () => {
  at("text").value = EXAMPLES.get(at("examples").value);
  at("call").value = at("sample").value = "";
  later();
};

function show_examples() {
  at("examples").replaceChildren(...[...EXAMPLES.keys()].map((value) => element("option", { value, textContent: value })));
}

read_address();
show_examples();
await refresh();
for (const [name, text] of Object.entries(JSON.parse(await ask("library")))) EXAMPLES.set(name, text);
show_examples();
