// Asks for the state of the runs and shows it. Everything that comes from a folder is set as text
// or as a number of a drawing, never as markup.
"use strict";

const AGAIN = 1500; // milliseconds between two questions
const HIDDEN = 10000; // the same while nobody looks
const PATIENCE = 15000;
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 320, 64, 16, 34, 40];
const WIDE = 30; // values that span a larger factor have a scale of powers of ten
const COLOURS = 18; // after which they repeat, with another dash
const DASHES = ["", "7 3", "2 2", "9 3 2 3"];
const SVG = "http://www.w3.org/2000/svg";

let shown = "";
const open = new Set(); // the folded parts that somebody has unfolded

function made(tag, content = "", kind = "") {
  const element = document.createElement(tag);
  for (const part of [content].flat()) element.append(part);
  if (kind) element.className = kind;
  return element;
}

function drawn(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return Number(value.toExponential(2)).toExponential();
  return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

function amount(value, unit) {
  if (value === null || value === undefined) return "-";
  const prefixes = ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < prefixes.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${number(value)} ${prefixes[step]}${unit}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 90) return `${number(seconds < 10 ? seconds : Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${number(seconds / 3600)} h`;
  return `${number(seconds / 86400)} days`;
}

function rounds(run) {
  return run.rounds ? `${run.round} of ${run.rounds}` : String(run.round);
}

function cohort(run) {
  return run.cohort === null ? "-" : `${run.cohort} of ${run.clients}`;
}

function bar(run) {
  const element = made("progress");
  element.max = run.rounds || 1;
  element.value = Math.min(run.round, element.max);
  element.setAttribute("aria-label", `round ${rounds(run)}`);
  return element;
}

function sentence(state) {
  const counts = new Map();
  for (const run of state.runs) counts.set(run.state, (counts.get(run.state) || 0) + 1);
  const words = state.single
    ? state.runs.map((run) => `${run.state}, round ${rounds(run)}`)
    : [`${state.runs.length} run${state.runs.length === 1 ? "" : "s"}: ` +
        [...counts].map(([name, count]) => `${count} ${name}`).join(", ")];
  if (state.left !== null) words.push(`about ${duration(state.left)} left`);
  return words.join("; ");
}

function facts(run) {
  const entries = [
    ["round", [rounds(run), bar(run)]],
    ["time left", duration(run.left), run.pace === null ? "" : `${duration(run.pace)} per round`],
    [`test ${run.metric || "score"}`, number(run.score)],
    ["training loss", number(run.loss)],
    ["took part in the last round", cohort(run), run.online === null ? "" : `${run.online} online`],
    ["sent by clients", amount(run.up, "B")],
    ["sent to clients", amount(run.down, "B"), `and ${amount(run.framing, "B")} of framing`],
    ["energy", amount(run.joules, "J"), run.joules === null ? "no device clock" : ""],
    ["device time", duration(run.seconds), run.seconds === null ? "no device clock" : "simulated"],
    ["privacy", run.privacy || "-"],
    ["refused", String(run.refused)],
  ];
  return entries.map(([name, value, more]) => {
    const content = made("dd", value);
    if (more) content.append(made("small", more));
    return made("div", [made("dt", name), content]);
  });
}

function table(heads, lines, texts) {
  const kind = (column) => (texts.includes(column) ? "text" : "");
  const head = made("tr", heads.map((name, i) => {
    const cell = made("th", name, kind(i));
    cell.scope = "col";
    return cell;
  }));
  const rows = lines.map((line) => made("tr", line.map((value, i) => {
    const cell = made(i ? "td" : "th", value, kind(i));
    if (!i) cell.scope = "row";
    return cell;
  })));
  return made("div", made("table", [made("thead", head), made("tbody", rows)]), "scroll");
}

function dot(colour) {
  const element = made("span", "", "dot");
  element.style.background = colour;
  return element;
}

function broken(path) {
  return path.split(/(?<=[/\\])/).flatMap((part) => [part, made("wbr")]);
}

function overview(runs) {
  const metric = runs.map((run) => run.metric).find(Boolean) || "score";
  const heads = ["run", "state", "round", "", metric, "loss", "left", "took part", "online",
    "up", "down", "joules", "privacy", "refused"];
  const lines = runs.map((run) => [
    broken(run.name),
    made("span", run.damaged && run.state !== "damaged" ? `${run.state}, damaged` : run.state,
      `state ${run.state}`),
    rounds(run), bar(run), number(run.score), number(run.loss), duration(run.left),
    cohort(run), number(run.online), amount(run.up, "B"), amount(run.down, "B"), amount(run.joules, "J"), run.privacy || "-",
    String(run.refused),
  ]);
  const element = table(heads, lines, [0, 1, heads.indexOf("privacy")]);
  element.querySelectorAll("tbody th").forEach((cell, i) => {
    cell.style.boxShadow = `inset 4px 0 ${runs[i].colour}`;
  });
  return element;
}

function ticks(low, high) {
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i < 8 && (first + i) * step <= high + step * 1e-9; i += 1) {
    found.push((first + i) * step);
  }
  return found;
}

function span(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

function grouped(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.name, [...(groups.get(line.name) || []), line]);
  return groups;
}

function last(group) {
  const values = group.map((line) => line.points.at(-1)[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)].map(number);
  return low === high ? low : `${low} to ${high}`;
}

function chart(picture) {
  const lines = picture.lines.map((line) => ({
    ...line, points: line.points.filter(([, value]) => value !== null),
  })).filter((line) => line.points.length);
  if (!lines.length) return null;
  const points = lines.flatMap((line) => line.points);
  const values = points.map(([, value]) => value);
  const [least, most] = span(values);
  const powers = picture.powers && least > 0 && most > WIDE * least;
  const height = (value) => (powers ? Math.log10(value) : value);
  const [x0, x1] = span(points.map(([round]) => round));
  const [y0, y1] = span(values.map(height));
  const across = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const down = (y) => TOP + ((y1 - y) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const groups = [...grouped(lines)].map(([name, group]) => ({ name, group }));
  const labels = groups.map(({ name, group }) => `${name} ${last(group)}`);
  svg.setAttribute("aria-label", `${picture.title} by round; last: ${labels.join(", ")}`);
  svg.append(drawn("text", { x: 4, y: 18, class: "title" }, picture.title));
  for (const y of ticks(y0, y1)) {
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: down(y), y2: down(y), class: "grid" }));
    const label = number(powers ? 10 ** y : Number(y.toPrecision(12)));
    svg.append(drawn("text", { x: LEFT - 8, y: down(y) + 4, "text-anchor": "end" }, label));
  }
  for (const x of ticks(x0, x1).filter(Number.isInteger)) {
    svg.append(drawn("text", { x: across(x), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, String(x)));
  }
  svg.append(drawn("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, "round"));
  for (const line of lines) {
    const places = line.points.map(([x, y]) => `${across(x).toFixed(1)},${down(height(y)).toFixed(1)}`);
    const group = groups.findIndex(({ name }) => name === line.name);
    const style = {
      class: lines.length > groups.length ? "curve several" : "curve",
      stroke: line.colour,
      "stroke-dasharray": DASHES[Math.floor(group / COLOURS) % DASHES.length],
    };
    svg.append(drawn("path", { ...style, d: `M${places.join("L")}` }));
    const [x, y] = places.at(-1).split(",");
    svg.append(drawn("circle", { cx: x, cy: y, r: 3.5, fill: line.colour }));
  }
  const legend = made("p", "", "legend");
  groups.forEach(({ group }, i) => {
    legend.append(made("span", [dot(group[0].colour), labels[i]]), " \u2003");
  });
  return made("figure", [svg, legend]);
}

function folded(key, title, content) {
  const element = made("details", [made("summary", title), content]);
  element.open = open.has(key);
  element.addEventListener("toggle", () => (element.open ? open.add(key) : open.delete(key)));
  return element;
}

function detail(run, single) {
  const parts = single ? [] : [made("h2", run.name)];
  if (run.privacy) parts.push(made("p", `Privacy: ${run.privacy}.`, "note"));
  if (run.clients.length) {
    parts.push(made("h3", `Clients in round ${run.round}`));
    const list = made("ul", run.clients.map(([name, state, about]) => {
      const item = made("li", state === "took part" ? name : `${name}: ${state}`, state.split(" ")[0]);
      item.title = [state, about].filter(Boolean).join("; ");
      return item;
    }), "clients");
    parts.push(list);
    if (run.more) parts.push(made("p", `and ${run.more} more`, "note"));
  }
  if (run.refused.length) {
    parts.push(made("h3", "Refusals"));
    parts.push(table(["times", "reason"], run.reasons.map(([why, count]) => [String(count), why]), [1]));
    const latest = run.refused.map(([round, client, why]) => [String(round), client, why]);
    parts.push(folded(`refused ${run.name}`, `the last ${latest.length}`,
      table(["round", "client", "reason"], latest, [1, 2])));
  }
  return made("article", parts);
}

function show(state) {
  const at = (id) => document.getElementById(id);
  const problems = state.problems || [];
  at("problems").replaceChildren(...problems.map((text) => made("li", text)));
  at("problems").hidden = !problems.length;
  if (!state.runs) return;
  at("title").textContent = state.title;
  document.title = `${state.title}: communis watch`;
  at("status").textContent = sentence(state);
  at("facts").hidden = !state.single;
  at("facts").replaceChildren(...(state.single ? facts(state.runs[0]) : []));
  at("runs").replaceChildren(...(state.single || !state.runs.length ? [] : [overview(state.runs)]));
  at("curves").replaceChildren(...state.curves.map(chart).filter(Boolean));
  at("details").replaceChildren(...state.details.map((run) => detail(run, state.single)));
}

async function ask() {
  const status = document.getElementById("status");
  try {
    const answer = await fetch("/state.json", { signal: AbortSignal.timeout(PATIENCE) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    if (text !== shown || status.classList.contains("lost")) {
      show(JSON.parse(text));
      shown = text;
      status.classList.remove("lost");
    }
  } catch (error) {
    status.textContent = "The command communis watch does not answer: what is below is old.";
    status.classList.add("lost");
  }
  setTimeout(ask, document.hidden ? HIDDEN : AGAIN);
}

ask();
