"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};
const views = JSON.parse($("data").textContent);
const NAMES = ["Python", "IR", "PTX", "SASS"];
const narrow = matchMedia("(max-width: 760px)");
const medium = matchMedia("(max-width: 1700px)");
let view, rows, order, hues, selected = "", shown = [], findingAt = -1, groupAt = 0;

const number = (n) => n.toLocaleString("en");
const bytes = (n) => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
};
const counted = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const percent = (part) => (part >= 0.0995 ? `${Math.round(part * 100)}%` : `${(part * 100).toFixed(1)}%`);
const lineName = (key) => key.slice(Math.max(key.lastIndexOf("/"), key.lastIndexOf("\\")) + 1);

// -- what a line costs ------------------------------------------------------------------------

function cycles(key) {
  const spent = (view.counts[key] || {}).cycles || {};
  return Object.values(spent).reduce((a, b) => a + b, 0);
}

// The cycles of all recorded warps.
function allCycles() {
  return view.timeline ? view.timeline.cycles * view.timeline.warps || 1 : 1;
}

function traffic(key) {
  return ((view.counts[key] || {}).traffic || []).map(([space, verb, moved, units, ideal]) => ({
    space, verb, moved, units, ideal,
    what: space === "global" ? "sectors" : "bank passes",
    over: ideal ? units / ideal : 1,
  }));
}

// The cycles of the functions that a line calls.
const inside = (key) => (view.counts[key] || {}).inside || 0;

function timeCell(key, most) {
  const cell = make("span", "cell time"), total = cycles(key), called = inside(key);
  if (called > total) {
    const meter = make("span", "meter"), part = make("i", "inside");
    part.style.width = `${Math.min(100, (100 * called) / most)}%`;
    meter.append(part);
    cell.append(meter, make("b", "", `(${percent(called / allCycles())})`));
    cell.title = "in the functions that it calls";
    return cell;
  }
  if (!total) return cell;
  const meter = make("span", "meter");
  for (const [state, spent] of Object.entries(view.counts[key].cycles)) {
    const part = make("i");
    part.style.width = `${(100 * spent) / most}%`;
    part.style.background = color(state);
    meter.append(part);
  }
  const part = total / allCycles();
  cell.append(meter, make("b", "", part >= 0.0005 ? percent(part) : ""));
  cell.title = states(key).join("\n");
  return cell;
}

function states(key) {
  const spent = Object.entries((view.counts[key] || {}).cycles || {}).sort((a, b) => b[1] - a[1]);
  return spent
    .filter(([, n]) => n / allCycles() >= 0.0005)
    .map(([state, n]) => `${view.states[state].text} ${percent(n / allCycles())}`);
}

// -- texts ------------------------------------------------------------------------------------

// Comments, strings, labels, registers, numbers, directives and opcodes of IR, PTX and SASS.
const TOKEN = new RegExp(
  [
    "(//.*)", '("[^"]*")', "(\\$L\\w+|\\.L\\w+)", "(%\\w[\\w.]*|\\bU?[RP](?:\\d+|[TZ])\\b|\\bU[RP]Z\\b)",
    "((?<![\\w.])(?:0[xfd][0-9A-Fa-f]+|\\d+(?:\\.\\d+)?)\\b)", "((?:[a-z]\\w*|[A-Z][A-Z0-9]+)(?:[.:]+\\w+)+|\\b[A-Z][A-Z0-9]{2,}\\b)",
  ].join("|"),
  "g",
);
const CLASSES = ["c", "s", "kc", "reg", "m", "op"];

function highlighted(text) {
  const code = make("span", "code");
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    code.append(text.slice(end, match.index), make("span", CLASSES[match.slice(1).findIndex(Boolean)], match[0]));
    end = match.index + match[0].length;
  }
  code.append(text.slice(end));
  return code;
}

function row(key) {
  const line = make("div", "row");
  if (key && hues.has(key)) {
    line.dataset.k = key;
    line.style.setProperty("--h", hues.get(key));
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(line);
  }
  return line;
}

function pane(name, title) {
  const box = make("section", `pane ${name}`), list = make("div", "rows"), inner = make("div", "inner");
  box.dataset.name = name;
  box.setAttribute("aria-label", name);
  list.tabIndex = 0;
  list.append(inner);
  box.append(make("h2", "", title), list);
  $("main").append(box);
  return inner;
}

function showPython() {
  const inner = pane("Python", `Python: ${view.arguments.join(", ")}`);
  const heads = make("div", "row heads");
  heads.append(make("span", "no", "line"));
  for (const [cls, text, title] of [
    ["time", "time", "estimated time of the recorded warps"], ["instr", "instr.", "instructions of warps"],
    ["bytes", "bytes", "loaded and stored by all threads"], ["over", "conflicts", "passes over banks, or sectors, per ideal one"],
  ]) {
    heads.append(Object.assign(make("span", `cell ${cls}`, text), { title }));
  }
  heads.append(make("span", "code"));
  inner.append(heads);
  const most = Math.max(1, ...Object.keys(view.counts).map(cycles));
  for (const source of view.sources) {
    const file = make("div", "file");
    file.append(make("span", "", `${source.file}:${source.first}`));
    inner.append(file);
    source.html.forEach((html, i) => {
      const key = `${source.path}:${source.first + i}`, line = row(key), counts = view.counts[key] || {};
      const moved = traffic(key), worst = moved.filter((t) => t.over > 1).sort((a, b) => b.over - a.over)[0];
      const sum = moved.reduce((n, t) => n + t.moved, 0);
      line.append(
        make("span", "no", source.first + i), timeCell(key, most),
        make("span", "cell instr", counts.instructions ? number(counts.instructions) : ""),
        make("span", "cell bytes", sum ? bytes(sum) : ""),
        make("span", "cell over", worst ? `${worst.over.toFixed(1)}× ${worst.space === "global" ? "sectors" : "banks"}` : ""),
      );
      const code = make("span", "code");
      code.innerHTML = html || " ";
      line.append(code);
      inner.append(line, ...notes(key));
    });
  }
  inner.prepend(...notes(""));
  for (const cls of ["time", "instr", "bytes", "over"]) {
    const cells = [...inner.querySelectorAll(`.row:not(.heads) .${cls}`)];
    inner.classList.toggle(`no-${cls}`, !cells.some((cell) => cell.textContent));
  }
}

function notes(key) {
  const at = (finding) => [finding.key, ...finding.calls].find((k) => hues.has(k)) || "";
  return view.findings.filter((finding) => at(finding) === key).map((finding) => {
    const note = make("div", `note ${finding.severity}`);
    note.dataset.finding = view.findings.indexOf(finding);
    note.append(make("b", "", finding.kind), finding.message);
    if (finding.other) {
      const other = make("button", "", `the other access: ${lineName(finding.other)}`);
      other.onclick = () => select(finding.other, true);
      note.append(make("br"), other);
    }
    return note;
  });
}

function showAssembly(name) {
  const { lines, keys, live } = view.assembly[name];
  const inner = pane(name, live ? "SASS: machine code, with the number of live registers" : name);
  if (live) {
    const heads = make("div", "row heads");
    heads.append(make("span", "no", "offset"), make("span", "cell live", "live"), make("span", "code"));
    inner.append(heads);
  }
  lines.forEach((text, i) => {
    const line = row(keys[i]), [, offset, rest] = (live && /^([0-9a-f]+) {2}(.*)/.exec(text)) || [];
    line.append(make("span", "no", live ? offset : i + 1));
    if (live) line.append(make("span", "cell live", live[i] ?? ""));
    line.append(highlighted(rest ?? text));
    inner.append(line);
  });
}

// -- selection --------------------------------------------------------------------------------

const linesOf = (key, name) => (rows.get(key) || []).filter((line) => line.closest(".pane").dataset.name === name);

// The first lines of the runs of neighbouring lines.
const groups = (lines) => lines.filter((line) => !lines.includes(line.previousElementSibling));

function scrollTo(line) {
  const list = line.closest(".rows"), top = line.getBoundingClientRect().top - list.getBoundingClientRect().top;
  if (top < 25 || top > list.clientHeight - 40) list.scrollTop += top - list.clientHeight / 3;
}

function select(key, fromOutside) {
  for (const line of rows.get(selected) || []) line.classList.remove("sel");
  selected = key;
  groupAt = 0;
  for (const line of rows.get(key) || []) line.classList.add("sel");
  if (fromOutside && narrow.matches) show("Python");
  reveal();
  showDetail();
  draw();
  history.replaceState(null, "", key ? `#${encodeURIComponent(key)}` : location.pathname + location.search);
}

function reveal() {
  for (const name of shown) {
    const [first] = linesOf(selected, name);
    if (first) scrollTo(name === "Python" ? first : groups(linesOf(selected, name))[groupAt] || first);
  }
}

function nextGroup(step) {
  const most = Math.max(0, ...shown.filter((n) => n !== "Python").map((n) => groups(linesOf(selected, n)).length));
  if (most) groupAt = (groupAt + step + most) % most;
  reveal();
}

function move(step) {
  const at = order.indexOf(selected);
  const next = at < 0 ? (step > 0 ? 0 : order.length - 1) : Math.min(order.length - 1, Math.max(0, at + step));
  if (order.length) select(order[next]);
}

function nextFinding() {
  if (!view.findings.length) return;
  findingAt = (findingAt + 1) % view.findings.length;
  const note = document.querySelector(`[data-finding="${findingAt}"]`);
  if (narrow.matches) show("Python");
  if (view.findings[findingAt].key) select(view.findings[findingAt].key);
  if (note) note.scrollIntoView({ block: "nearest" });
}

function showDetail() {
  const box = $("detail");
  box.replaceChildren();
  if (!selected) {
    box.append(make("span", "none", view.complete || !view.run
      ? `Select a line: it is marked in all texts${view.timeline ? " and in the timeline" : ""}.`
      : "The emulated run did not come to its end, so there are no counts and no timeline; the findings say why."));
    return;
  }
  const counts = view.counts[selected] || {}, add = (text) => box.append(make("span", "", text));
  box.append(make("code", "", lineName(selected)), " ");
  add("");
  for (const name of NAMES.slice(1)) {
    const count = linesOf(selected, name).length;
    if (count) add(`${counted(count, "line")} of ${name}`);
  }
  if (counts.instructions) add(`${counted(counts.instructions, "instruction")} of warps`);
  for (const t of traffic(selected)) {
    add(`${t.space} ${t.verb}: ${bytes(t.moved)}` + (t.units ? `, ${number(t.units)} ${t.what}, ideal ${number(t.ideal)}` : ""));
  }
  if (inside(selected)) add(`time in the functions that it calls ${percent(inside(selected) / allCycles())}`);
  if (states(selected).length) add(`time ${percent(cycles(selected) / allCycles())}: ${states(selected).join(", ")}`);
}

// -- panes ------------------------------------------------------------------------------------

function show(name) {
  const limit = narrow.matches ? 1 : medium.matches ? 2 : 4;
  shown = shown.filter((other) => other !== name);
  while (shown.length >= limit) shown.splice(limit === 2 && shown[0] === "Python" ? 1 : 0, 1);
  shown.push(name);
  panesChanged();
}

function toggle(name) {
  if (!shown.includes(name)) show(name);
  else if (shown.length > 1) {
    shown = shown.filter((other) => other !== name);
    panesChanged();
  }
}

function toggleTimeline() {
  if (!view.timeline) return;
  if (narrow.matches) shown = shown.includes("Timeline") ? ["Python"] : ["Timeline"];
  else $("timeline").dataset.off = $("timeline").dataset.off ? "" : "1";
  panesChanged();
}

function panesChanged() {
  if (!narrow.matches) {
    shown = shown.filter((name) => name !== "Timeline");
    if (!shown.length) shown = ["Python", "SASS"];
  } else shown = shown.slice(-1);
  for (const box of document.querySelectorAll(".pane")) box.hidden = !shown.includes(box.dataset.name);
  const alone = shown.includes("Timeline"), timeline = $("timeline");
  timeline.hidden = !view.timeline || (narrow.matches ? !alone : timeline.dataset.off === "1");
  timeline.classList.toggle("alone", alone);
  $("main").hidden = alone;
  $("main").style.display = alone ? "none" : "";
  for (const button of document.querySelectorAll("nav [data-name]")) {
    const on = button.dataset.name === "Timeline" ? !timeline.hidden : shown.includes(button.dataset.name);
    button.setAttribute("aria-pressed", on);
  }
  widths();
  reveal();
  draw();
}

function widths() {
  for (const list of document.querySelectorAll(".rows")) list.style.setProperty("--width", `${list.clientWidth - 4}px`);
}

function showNav() {
  const nav = $("panes");
  nav.replaceChildren();
  for (const name of [...NAMES, ...(view.timeline ? ["Timeline"] : [])]) {
    const button = make("button", "", name);
    button.dataset.name = name;
    button.onclick = () => (name === "Timeline" ? toggleTimeline() : toggle(name));
    nav.append(button);
  }
  const counts = ["error", "warning"].map((kind) => view.findings.filter((f) => f.severity === kind).length);
  if (!view.run) nav.append(make("span", "clean", "not run"));
  else if (!view.findings.length) nav.append(make("span", "clean", "checked: no findings"));
  else {
    const words = [["finding", counts[0]], ["warning", counts[1]]].filter(([, n]) => n);
    const text = words.map(([word, n]) => counted(n, word)).join(", ");
    const button = make("button", `findings ${counts[0] ? "error" : "warning"}`, text);
    button.title = "the next one (f)";
    button.onclick = nextFinding;
    nav.append(button);
  }
}

// -- timeline ---------------------------------------------------------------------------------

const LABEL = 96, LANES = 5;
let from = 0, to = 1, bars = [];

const dark = () => document.documentElement.classList.contains("dark");
const color = (state) => (state === "wait" ? css("--wait") : view.states[state].color);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layOut() {
  const { tracks, products, copies, colors } = view.timeline;
  const named = (start, end, fill, key, text) => ({ start, end, fill, key, text });
  bars = tracks.map(({ name, spans }) => ({
    name,
    bars: spans.map(([start, end, state, key, what]) => named(start, end, state, key, what || view.states[state].text)),
  }));
  if (products.length) {
    bars.push({ name: "tensor cores", bars: products.map(([s, e, key]) => named(s, e, colors.multiply, key, "multiply")) });
  }
  const lanes = [];
  for (const [start, end, key, size, kind] of copies) {
    let lane = lanes.findIndex((l) => l.at(-1).end <= start);
    if (lane < 0) lane = lanes.length < LANES ? lanes.push([]) - 1 : LANES - 1;
    lanes[lane].push(named(start, end, colors.copy, key, `${kind} of ${bytes(size)} in flight`));
  }
  lanes.forEach((lane, i) => bars.push({ name: i ? "" : "copies", bars: lane }));
}

const rowHeight = () => (bars.length > 26 ? 11 : bars.length > 14 ? 13 : 17);

function draw() {
  if (!view.timeline || $("timeline").hidden) return;
  const canvas = $("canvas"), width = canvas.clientWidth, high = rowHeight();
  const stages = view.timeline.stages.length ? 46 : 0, height = bars.length * high + stages + 22;
  const scale = devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.style.height = `${height}px`;
  canvas.width = width * scale;
  canvas.height = height * scale;
  pen.scale(scale, scale);
  const x = (t) => LABEL + ((t - from) / (to - from)) * (width - LABEL - 8);
  pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  bars.forEach(({ name, bars: spans }, i) => {
    pen.fillStyle = css("--dim");
    pen.fillText(name, 0, i * high + high - 4);
    for (const bar of spans) {
      if (bar.end < from || bar.start > to) continue;
      pen.globalAlpha = selected && bar.key !== selected ? 0.28 : 1;
      pen.fillStyle = bar.fill in view.states ? color(bar.fill) : bar.fill;
      const left = Math.max(LABEL, x(bar.start)), right = Math.min(width, x(bar.end));
      pen.fillRect(left, i * high + 1, Math.max(0.6, right - left), high - 3);
    }
    pen.globalAlpha = 1;
  });
  if (stages) drawStages(pen, x, bars.length * high, stages, width);
  drawAxis(pen, x, height, width);
}

function drawStages(pen, x, top, high, width) {
  const { stages, colors } = view.timeline, most = Math.max(...stages.map((s) => Math.max(s[1], s[2])), 1);
  pen.fillStyle = css("--dim");
  pen.fillText("stages full,", 0, top + 22);
  pen.fillText("loading", 0, top + 35);
  for (const [place, line] of [[2, colors.multiply], [1, colors.copy]]) {
    pen.strokeStyle = line;
    pen.lineWidth = 1.5;
    pen.beginPath();
    let y = top + high - 4;
    pen.moveTo(LABEL, y);
    for (const stage of stages) {
      const at = Math.min(width, Math.max(LABEL, x(stage[0])));
      pen.lineTo(at, y);
      y = top + high - 4 - (stage[place] / most) * (high - 10);
      pen.lineTo(at, y);
    }
    pen.lineTo(Math.max(LABEL, x(view.timeline.cycles)), y);
    pen.stroke();
  }
}

function drawAxis(pen, x, height, width) {
  const rough = (to - from) / Math.max(2, (width - LABEL) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  pen.fillStyle = css("--dim");
  pen.strokeStyle = css("--line");
  pen.lineWidth = 1;
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    pen.beginPath();
    pen.moveTo(x(t), height - 20);
    pen.lineTo(x(t), height - 14);
    pen.stroke();
    const text = number(Math.round(t));
    pen.fillText(text, Math.min(x(t) - 2, width - 6.5 * text.length), height - 3);
  }
  pen.fillText("cycles", 0, height - 3);
}

function zoom(factor, middle = (from + to) / 2) {
  const span = Math.min(view.timeline.cycles, Math.max(50, (to - from) * factor));
  const part = (middle - from) / (to - from);
  setWindow(middle - part * span, span);
}

function setWindow(start, span) {
  from = Math.max(0, Math.min(start, view.timeline.cycles - span));
  to = from + span;
  draw();
}

function barAt(event) {
  const box = $("canvas").getBoundingClientRect(), lane = bars[Math.floor((event.clientY - box.top) / rowHeight())];
  const at = timeAt(event), slack = ((to - from) / box.width) * 1.5;
  return lane && at >= from && lane.bars.find((bar) => bar.start - slack <= at && at <= bar.end + slack);
}

function timeAt(event) {
  const box = $("canvas").getBoundingClientRect();
  return from + ((event.clientX - box.left - LABEL) / (box.width - LABEL - 8)) * (to - from);
}

function tip(event) {
  const bar = barAt(event), box = $("tip");
  box.hidden = !bar;
  if (!bar) return;
  box.textContent = `${bar.text}: ${number(bar.end - bar.start)} cycles, from ${number(bar.start)}` + (bar.key ? `, ${lineName(bar.key)}` : "");
  box.style.left = `${Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.max(4, event.clientY - box.offsetHeight - 12)}px`;
}

function listenToCanvas() {
  const canvas = $("canvas");
  let drag = null, moved = false;
  canvas.onpointerdown = (event) => {
    drag = { x: event.clientX, from };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    if (!drag) return tip(event);
    moved ||= Math.abs(event.clientX - drag.x) > 4;
    if (moved) setWindow(drag.from - ((event.clientX - drag.x) / (canvas.clientWidth - LABEL)) * (to - from), to - from);
  };
  canvas.onpointerup = (event) => {
    drag = null;
    const bar = moved ? null : barAt(event);
    if (bar && bar.key) select(bar.key === selected ? "" : bar.key);
    tip(event);
  };
  canvas.onpointerleave = () => ($("tip").hidden = true);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
    else setWindow(from + ((event.deltaX || event.deltaY) / canvas.clientWidth) * (to - from), to - from);
  }, { passive: false });
  $("in").onclick = () => zoom(0.5);
  $("out").onclick = () => zoom(2);
  $("all").onclick = () => zoom(Infinity);
}

function showLegend() {
  const box = $("legend"), { colors } = view.timeline;
  box.replaceChildren();
  const entries = Object.entries(view.states).map(([state, { text }]) => [color(state), text]);
  for (const [fill, text] of [...entries, [colors.multiply, "multiply"], [colors.copy, "copy in flight"]]) {
    const entry = make("span", "", text), mark = make("i");
    mark.style.background = fill;
    entry.prepend(mark);
    box.append(entry);
  }
}

// -- page -------------------------------------------------------------------------------------

function open(index) {
  view = views[index];
  rows = new Map();
  // The golden angle gives neighbours distant hues.
  const known = new Set(Object.values(view.assembly).flatMap(({ keys }) => keys).filter(Boolean));
  for (const finding of view.findings) if (finding.key) known.add(finding.key);
  order = view.sources.flatMap(({ path, first, html }) => html.map((_, i) => `${path}:${first + i}`)).filter((k) => known.has(k));
  hues = new Map(order.map((key, i) => [key, Math.round(i * 137.5) % 360]));
  selected = "";
  findingAt = -1;
  $("name").textContent = document.title = view.name;
  document.title += " · kernel view";
  $("launch").textContent = `${view.arch}, ${view.launch}`;
  $("numbers").replaceChildren(...view.numbers.map(([name, value, title]) => {
    const box = make("div", name === "spills" && value !== "none" ? "bad" : "");
    box.title = title;
    box.append(make("dt", "", name), make("dd", "", value));
    return box;
  }));
  $("main").replaceChildren();
  showNav();
  showPython();
  NAMES.slice(1).forEach(showAssembly);
  if (view.timeline) {
    $("text").textContent = view.timeline.text;
    $("canvas").setAttribute("aria-label", view.timeline.text);
    [from, to] = [0, view.timeline.cycles || 1];
    layOut();
    showLegend();
  }
  const second = view.assembly.SASS.missing ? "PTX" : "SASS";
  shown = narrow.matches ? ["Python"] : medium.matches ? ["Python", second] : ["Python", "PTX", "SASS"];
  panesChanged();
  showDetail();
}

function setTheme(isDark) {
  document.documentElement.classList.toggle("dark", isDark);
  if (view) open(views.indexOf(view));
}

function listen() {
  const main = $("main");
  const keyOf = (event) => (event.target.closest && event.target.closest("[data-k]") || { dataset: {} }).dataset.k;
  main.addEventListener("click", (event) => {
    const key = keyOf(event);
    if (!key || getSelection().toString()) return;
    if (key === selected) nextGroup(1);
    else select(key);
  });
  let hot = "";
  main.addEventListener("mouseover", (event) => {
    const key = keyOf(event) || "";
    if (key === hot) return;
    for (const line of rows.get(hot) || []) line.classList.remove("hot");
    for (const line of rows.get(key) || []) line.classList.add("hot");
    hot = key;
  });
  const keys = {
    ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1),
    n: () => nextGroup(1), p: () => nextGroup(-1), f: nextFinding, t: toggleTimeline, Escape: () => select(""),
    "?": () => $("keys").showModal(), 1: () => toggle("Python"), 2: () => toggle("IR"), 3: () => toggle("PTX"), 4: () => toggle("SASS"),
  };
  const timelineKeys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(Infinity),
    ArrowLeft: () => setWindow(from - (to - from) / 4, to - from), ArrowRight: () => setWindow(from + (to - from) / 4, to - from),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || event.target.tagName === "SELECT") return;
    const sideways = event.key.startsWith("ArrowL") || event.key.startsWith("ArrowR");
    const chosen = keys[event.key] || (view.timeline && (!sideways || event.target === $("canvas")) && timelineKeys[event.key]);
    if (!chosen) return;
    event.preventDefault();
    chosen();
  });
  $("help").onclick = () => $("keys").showModal();
  $("theme").onclick = () => setTheme(!dark());
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => panesChanged(), 60);
  });
  listenToCanvas();
}

if (views.length > 1) {
  $("which").hidden = false;
  $("which").append(...views.map((one, i) => new Option(`${i + 1}: ${one.name}`, i)));
  $("which").onchange = (event) => open(+event.target.value);
}
document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
listen();
open(0);
if (location.hash) select(decodeURIComponent(location.hash.slice(1)));
