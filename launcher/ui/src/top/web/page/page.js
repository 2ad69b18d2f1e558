// Draws what `enn top --web` sends. What a text says is decided there; here is only where it stands. Everything that is
// received becomes text, never markup.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const KEY = "enn-token";
  const EVENTS_MAX = 600, ASK_MAX_MS = 45000, AGAIN_MAX_MS = 10000;
  const CURVES = ["loss", "epoch_loss", "validation", "learning_rate", "samples_per_s"];

  // The token leaves the address bar; this tab keeps it, for this server only.
  const given = new URLSearchParams(location.search).get("token");
  let token = given;
  try {
    if (given) sessionStorage.setItem(KEY, given);
    token = sessionStorage.getItem(KEY);
  } catch { /* Without storage the token lasts until the page is loaded again. */ }
  if (given) history.replaceState(null, "", "/");

  let known, curves, last, asking, byTime = false, pick = { rank: "", stream: "" };
  forget();

  function forget() {
    known = { version: 0, run: 0, events: 0, marks: 0, log: "" };
    curves = Object.fromEntries(CURVES.map((name) => [name, { edits: 0, points: [] }]));
    curves.marks = [];
  }

  // ---- elements

  function element(tag, properties, ...children) {
    const made = document.createElement(tag);
    Object.assign(made, properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  }
  function drawn(tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function say(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }
  function show(node, text) {
    node.hidden = !text;
    say(node, text || "");
  }

  // ---- numbers of axes and read-outs

  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(1);
    if (size >= 1000) return Math.round(value).toLocaleString("en-US");
    const decimals = size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 || size === 0 ? 3 : 5;
    return value.toFixed(decimals);
  }
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  function duration(seconds) {
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)} min ${two(s % 60)} s` : `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  }
  function clock(time) {
    const date = new Date(time * 1000);
    return { short: date.toLocaleTimeString("en-GB"), long: date.toLocaleString("en-GB") };
  }
  function stepOf(span, count) {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw)), factor = raw / power;
    return power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
  }
  function ticks(low, high, count, isWhole) {
    let step = stepOf(high - low, count);
    if (isWhole) step = Math.max(1, step);
    const decimals = Math.min(12, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
    const all = [];
    for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i += 1) {
      const value = i * step;
      all.push([value, value >= 1e6 ? `${+(value / 1e6).toFixed(2)}M` : value >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : value.toFixed(decimals)]);
    }
    return all;
  }
  function decades(low, high) {
    const first = Math.floor(Math.log10(low)), end = Math.ceil(Math.log10(high));
    const all = [], factors = end - first <= 1 ? [1, 2, 3, 4, 5, 6, 8] : end - first <= 3 ? [1, 2, 5] : [1];
    for (let power = first; power <= end; power += 1) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) all.push([value, power < -4 ? value.toExponential(0) : String(+value.toPrecision(1))]);
      }
    }
    return all;
  }
  function timeUnit(seconds) {
    if (seconds < 180) return [1, "seconds since the start"];
    if (seconds < 7200) return [60, "minutes since the start"];
    return seconds < 3 * 86400 ? [3600, "hours since the start"] : [86400, "days since the start"];
  }

  // ---- charts

  class Chart {
    constructor(figure, name) {
      this.name = name;
      this.isLog = null;
      this.at = null;
      this.title = element("h3", {}, name);
      this.subtitle = element("p", {});
      this.log = element("button", { type: "button", textContent: "log scale", ariaPressed: "false" });
      this.svg = drawn("svg", { "aria-hidden": "true" });
      this.tip = element("div", { className: "tip", hidden: true });
      this.heard = element("p", { className: "unseen" });
      this.heard.setAttribute("aria-live", "polite");
      this.plot = element("div", { className: "plot", tabIndex: 0 }, this.svg, this.tip);
      this.plot.setAttribute("role", "group");
      figure.append(element("figcaption", {}, element("div", {}, this.title, this.subtitle), this.log), this.plot, this.heard);
      this.log.addEventListener("click", () => { this.isLog = this.log.ariaPressed !== "true"; this.draw(); });
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => this.readAt(null));
      this.plot.addEventListener("blur", () => this.readAt(null));
      this.plot.addEventListener("keydown", (event) => this.press(event));
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }

    // `content`: main and faint points, levels, best, unit, whether single points are dots.
    set(content) {
      this.content = content;
      say(this.subtitle, content.subtitle);
      this.draw();
    }

    xOf(point) { return byTime ? point[1] : point[0]; }

    scales(width, height) {
      const { main, faint, levels } = this.content;
      const both = faint.concat(main);
      const right = levels.length ? Math.min(150, width * 0.3) : 64;
      const box = { left: 50, right: width - right, top: 16, bottom: height - 36 };
      let end = 1;
      for (const point of both) end = Math.max(end, this.xOf(point));
      let low = Infinity, high = -Infinity, start = -Infinity, tops = [];
      for (const point of both) {
        low = Math.min(low, point[3] ?? point[2]);
        start = Math.max(start, point[4] ?? point[2]);
        if (both.length < 40 || this.xOf(point) > end * 0.08) tops.push(point[4] ?? point[2]);
      }
      for (const top of tops) high = Math.max(high, top);
      if (!(high > low)) high = Math.max(start, low);
      const shown = levels.filter((level) => level.value < high * 3 && level.value > low / 3);
      for (const level of shown) { low = Math.min(low, level.value); high = Math.max(high, level.value); }
      const canLog = low > 0;
      const isLog = canLog && (this.isLog ?? (this.content.mayLog && start / low > 20));
      if (isLog) high = Math.max(high, start);
      if (!(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) { low -= 0.5 * (isLog ? low : 1); high += 0.5; }
      if (!isLog) {
        if (this.content.mayLog && low > 0 && low < high * 0.5) low = 0;
        const step = stepOf(high - low, 4);
        low = Math.floor(low / step + 1e-9) * step;
        high = Math.ceil(high / step - 1e-9) * step;
      }
      const y = (value) => {
        const share = isLog ? Math.log(Math.max(value, 1e-300) / low) / Math.log(high / low) : (value - low) / (high - low);
        return box.bottom - share * (box.bottom - box.top);
      };
      const x = (value) => box.left + (value / end) * (box.right - box.left);
      return { box, end, low, high, isLog, canLog, shown, x, y };
    }

    draw() {
      if (!this.content) return;
      const width = this.plot.clientWidth, height = this.plot.clientHeight;
      if (width < 60) return;
      const scales = this.scales(width, height);
      this.last = scales;
      const { box, x, y, isLog, shown } = scales;
      this.log.ariaPressed = String(isLog);
      this.log.hidden = !scales.canLog;
      const svg = this.svg;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.axes(scales);
      const clip = drawn("clipPath", { id: `clip-${this.name.replace(/\W/g, "")}` });
      clip.append(drawn("rect", { x: box.left - 4, y: box.top - 8, width: box.right - box.left + 8, height: box.bottom - box.top + 12 }));
      const inside = drawn("g", { "clip-path": `url(#${clip.id})` });
      svg.append(clip, inside);
      for (const level of shown) {
        inside.append(drawn("path", { class: `level ${kind(level.name)}`, d: `M${box.left},${y(level.value)}H${box.right}` }));
      }
      for (const mark of curves.marks) {
        const at = x(byTime ? mark.time : mark.step);
        inside.append(drawn("path", { class: `mark ${mark.class}`, d: `M${at},${box.top}V${box.bottom}` }));
        const d = mark.class === "failure" ? `M${at - 4},${box.top - 4}l8,8m0,-8l-8,8` : `M${at - 4},${box.top + 3}l4,-7l4,7z`;
        inside.append(drawn("path", { class: `sign ${mark.class}`, d }));
      }
      const { main, faint, best } = this.content;
      this.curve(inside, faint, main.length > 1 ? "line faint" : "line");
      this.curve(inside, main, "line");
      if (main.length && main.length <= 40) for (const point of main) inside.append(drawn("circle", { class: "dot", cx: x(this.xOf(point)), cy: y(point[2]), r: 2.8 }));
      if (best) inside.append(drawn("circle", { class: "best", cx: x(byTime ? timeAt(main, best.step) : best.step), cy: y(best.value), r: 5 }));
      this.labels(scales);
      if (this.at !== null) this.readAt(this.at, true);
    }

    axes({ box, low, high, end, isLog, x, y }) {
      const svg = this.svg;
      for (const [value, label] of isLog ? decades(low, high) : ticks(low, high, 4, false)) {
        const at = y(value);
        svg.append(drawn("path", { class: "grid", d: `M${box.left},${at}H${box.right}` }), drawn("text", { class: "end", x: box.left - 8, y: at + 4 }, label));
      }
      svg.append(drawn("path", { class: "axis", d: `M${box.left},${box.bottom}H${box.right}` }));
      const [unit, name] = byTime ? timeUnit(end) : [1, "optimizer step"];
      for (const [value, label] of ticks(0, end / unit, Math.max(2, Math.min(6, (box.right - box.left) / 80)), !byTime)) {
        svg.append(drawn("text", { class: "mid", x: x(value * unit), y: box.bottom + 17 }, label));
      }
      svg.append(drawn("text", { class: "mid", x: (box.left + box.right) / 2, y: box.bottom + 33 }, name));
    }

    // The mean as a line, and least to greatest as a band, where points stand for several steps.
    curve(into, points, style) {
      if (!points.length) return;
      const { x, y } = this.last;
      let line = "", upper = "", lower = "", banded = false;
      points.forEach((point, index) => {
        const at = x(this.xOf(point)).toFixed(1);
        line += `${index ? "L" : "M"}${at},${y(point[2]).toFixed(1)}`;
        banded ||= point.length > 3;
        upper += `${index ? "L" : "M"}${at},${y(point[4] ?? point[2]).toFixed(1)}`;
        lower = `L${at},${y(point[3] ?? point[2]).toFixed(1)}${lower}`;
      });
      if (banded) into.append(drawn("path", { class: "band", d: `${upper}${lower}Z` }));
      into.append(drawn("path", { class: style, d: line }));
    }

    // Names at the right ends, moved apart.
    labels({ box, shown, y }) {
      const { main, faint, unit, levels } = this.content;
      const end = (main.length ? main : faint).at(-1);
      const all = shown.map((level) => ({ at: y(level.value), text: `${level.name} ${number(level.value)}`, style: kind(level.name) }));
      if (end) all.push({ at: y(end[2]), text: `${levels.length ? "ENN " : ""}${number(end[2])}`, style: "model" });
      all.sort((a, b) => a.at - b.at);
      all.forEach((label, index) => { if (index) label.at = Math.max(label.at, all[index - 1].at + 15); });
      const over = all.length ? all.at(-1).at - box.bottom : 0;
      if (over > 0) for (let i = all.length - 1; i >= 0; i -= 1) all[i].at = Math.min(all[i].at, box.bottom - 15 * (all.length - 1 - i));
      for (const label of all) this.svg.append(drawn("text", { class: label.style, x: box.right + 8, y: label.at + 4 }, label.text));
      const said = end ? `${this.name}: ${number(end[2])} ${unit} at step ${whole(end[0])}` : this.name;
      this.plot.setAttribute("aria-label", `${said}. The arrow keys read single points.`);
    }

    // ---- reading single points

    points() { return this.content.main.length > 1 ? this.content.main : this.content.faint.length ? this.content.faint : this.content.main; }

    point(event) {
      if (!this.content || !this.last) return;
      const { box, end } = this.last;
      const place = event.clientX - this.plot.getBoundingClientRect().left;
      const finest = this.content.faint.length ? this.content.faint : this.content.main;
      const index = nearest(finest, (place - box.left) / (box.right - box.left) * end, (point) => this.xOf(point));
      this.readAt(index === null ? null : finest[index]);
    }

    press(event) {
      const all = this.content ? this.points() : [];
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") return this.readAt(null);
      if (!(event.key in moves) || !all.length) return;
      event.preventDefault();
      const from = this.at ? nearest(all, this.at[0], (point) => point[0]) : all.length;
      this.readAt(all[Math.max(0, Math.min(all.length - 1, from + moves[event.key]))]);
      say(this.heard, this.tip.textContent);
    }

    readAt(point, again) {
      this.at = point;
      this.tip.hidden = !point;
      this.svg.querySelectorAll(".cross, .under").forEach((node) => node.remove());
      if (!point) return;
      const { box, x, y, end } = this.last, at = x(this.xOf(point)), { main, faint, unit, values } = this.content;
      this.svg.append(drawn("path", { class: "cross", d: `M${at},${box.top}V${box.bottom}` }));
      const epochs = last?.curves?.steps_per_epoch;
      const lines = [element("p", {}, `step ${whole(point[0])}${epochs ? `, epoch ${(point[0] / epochs).toFixed(2)}` : ""}, after ${duration(point[1])} `)];
      for (const [points, name] of [[faint, values[0]], [main, values[1]]]) {
        const index = nearest(points, point[0], (one) => one[0]);
        if (index === null) continue;
        const near = points[index];
        if (points !== faint && Math.abs(x(this.xOf(near)) - at) > 14) continue;
        const span = near.length > 3 ? ` (${number(near[3])} to ${number(near[4])})` : "";
        lines.push(element("p", {}, `${name} `, element("b", {}, `${number(near[2])} ${unit}`.trim()), `${span} `));
        this.svg.append(drawn("circle", { class: "under", cx: x(this.xOf(near)), cy: Math.max(box.top, y(near[2])), r: 4 }));
      }
      for (const mark of curves.marks) {
        if (Math.abs(x(byTime ? mark.time : mark.step) - at) < 7) lines.push(element("p", { className: mark.class === "failure" ? "bad" : "wait" }, mark.text));
      }
      this.tip.replaceChildren(...lines);
      const isRight = at > (box.left + box.right) / 2;
      this.tip.style.left = isRight ? "auto" : `${at + 14}px`;
      this.tip.style.right = isRight ? `${this.plot.clientWidth - at + 14}px` : "auto";
      if (!again && end) say(this.heard, "");
    }
  }

  const kind = (name) => (["ridge", "persistence"].includes(name) ? name : "floor");
  function nearest(points, value, of) {
    if (!points.length) return null;
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (of(points[middle]) < value) low = middle + 1; else high = middle;
    }
    return low > 0 && value - of(points[low - 1]) < of(points[low]) - value ? low - 1 : low;
  }
  function timeAt(points, step) {
    const index = nearest(points, step, (point) => point[0]);
    return index === null ? 0 : points[index][1];
  }

  const lossChart = new Chart($("loss"), "Training loss");
  const validationChart = new Chart($("validation"), "Validation error");

  function drawCharts() {
    if (!last?.curves) return;
    const { latest, levels, best, error_name: errorName, unit } = last.curves;
    const faint = curves.loss.points.slice();
    if (latest && latest.loss !== null && latest.step > (faint.at(-1)?.[0] ?? 0)) {
      faint.push([latest.step, faint.length && !last.living ? faint.at(-1)[1] : Math.max(0, last.now - last.origin), latest.loss]);
    }
    const epochs = curves.epoch_loss.points, validation = curves.validation.points;
    $("charts").hidden = !faint.length && !validation.length;
    lossChart.set({ main: epochs, faint, levels: [], best: null, unit: "", mayLog: true, values: ["loss", "mean of the epoch"],
      subtitle: epochs.length > 1 ? "standardised target; bold: means of epochs" : "standardised target" });
    $("validation").hidden = !validation.length;
    validationChart.set({ main: validation, faint: [], levels, best, unit: unit ?? "", mayLog: false, values: ["", "error"], subtitle: errorName ?? "" });
    const keys = [];
    const key = (style, d, text) => {
      const svg = drawn("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" });
      svg.append(drawn("path", { class: style, d }));
      keys.push(element("span", { className: "key" }, svg, text));
    };
    if (best) {
      const svg = drawn("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" });
      svg.append(drawn("circle", { class: "best", cx: 11, cy: 6, r: 4.5 }));
      keys.push(element("span", { className: "key" }, svg, `best: ${best.name}`));
    }
    const has = (style) => curves.marks.some((mark) => mark.class === style);
    if (has("failure")) key("sign failure", "M7,2l8,8m0,-8l-8,8", "failure");
    if (has("change")) key("sign change", "M7,10l4,-7l4,7z", "the workers met again");
    if (has("launch")) key("sign launch", "M7,10l4,-7l4,7z", "launched again");
    $("keys").replaceChildren(...keys);
  }

  function spark(points) {
    const svg = drawn("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
    if (points.length < 2) return null;
    const end = points.at(-1)[0], values = points.map((point) => point[2]);
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    const y = (value) => (high > low ? 20 - 18 * (value - low) / (high - low) : 11);
    svg.append(drawn("path", { class: "spark", d: points.map((point, index) => `${index ? "L" : "M"}${(100 * point[0] / end).toFixed(2)},${y(point[2]).toFixed(2)}`).join("") }));
    return svg;
  }

  // ---- the parts of the page

  function drawHead(run) {
    const { progress } = run;
    $("place").title = run.command ?? "";
    say($("place"), [run.command, run.dir && `${run.host ?? ""}:${run.dir}`].filter(Boolean).join("   ") || "enn top --web");
    say($("name"), run.name || "No run yet");
    $("state").className = `state ${run.tone}${run.living ? " alive" : ""}`;
    show($("state"), run.state);
    show($("says"), run.says);
    $("says").className = `says ${run.tone}`;
    $("progress").hidden = !progress;
    const percent = progress ? Math.round(100 * progress.share) : 0;
    $("done").style.width = `${progress ? 100 * progress.share : 0}%`;
    $("track").setAttribute("aria-valuenow", percent);
    $("track").setAttribute("aria-valuetext", progress?.text ?? "");
    say($("far"), progress ? `${progress.text} · ${percent} %` : "");
    say($("left"), progress?.eta ? `${progress.eta} left` : "");
    say($("elapsed"), [run.mode && `enn ${run.mode}`, run.host && `on ${run.host}`, run.elapsed && `${run.living ? "for" : "took"} ${run.elapsed}`].filter(Boolean).join(" "));
    document.title = `${progress && run.living ? `${percent} % ` : ""}${run.state} – ${run.name || "ENN"}`;
    const notes = (run.notes ?? []).concat(run.curves?.warning ?? []);
    $("notes").hidden = !notes.length;
    $("notes").replaceChildren(...notes.map((note) => element("p", {}, note)));
  }

  function drawFigures(figures) {
    const tiles = figures.map((figure) => {
      const unit = figure.unit ? element("small", {}, ` ${figure.unit}`) : null;
      const note = figure.note ? element("dd", { className: "aside" }, figure.note) : null;
      const curve = figure.curve ? spark(curves[figure.curve].points) : null;
      return element("div", {}, element("dt", {}, figure.name), element("dd", {}, figure.value, unit), note, curve ? element("dd", {}, curve) : null);
    });
    $("figures").replaceChildren(...tiles);
  }

  // Rows and cells stay the same elements, so that what has the focus keeps it. Columns without a value are left out.
  function drawTable(table, columns, rows) {
    const used = columns.filter((column) => column.always || rows.some((row) => row[column.of] !== null && row[column.of] !== undefined));
    const names = used.map((column) => column.name).join("|");
    const [head, body] = [table.tHead, table.tBodies[0]];
    if (table.dataset.names !== names) {
      table.dataset.names = names;
      head.replaceChildren(element("tr", {}, ...used.map((column) => element("th", { scope: "col", className: column.number ? "number" : "" }, column.name))));
      body.replaceChildren();
    }
    while (body.rows.length > rows.length) body.lastChild.remove();
    rows.forEach((row, index) => {
      let line = body.rows[index];
      if (!line) {
        line = element("tr", {}, ...used.map((column) => {
          const cell = element("td", { className: column.number ? "number" : "" });
          if (!column.always) cell.dataset.name = column.name;
          return cell;
        }));
        body.append(line);
      }
      used.forEach((column, at) => column.draw ? column.draw(line.cells[at], row) : fill(line.cells[at], column, row));
    });
  }
  function fill(cell, column, row) {
    const value = row[column.of];
    say(cell, value === null || value === undefined ? "–" : String(value));
    cell.classList.toggle("empty", value === null || value === undefined);
  }
  function toned(cell, row, value) {
    cell.className = row.tone;
    say(cell, value);
  }

  const WORKERS = [
    { name: "rank", of: "rank", always: true, draw: (cell, row) => {
      let button = cell.firstChild;
      if (!button) {
        button = element("button", { type: "button" });
        button.addEventListener("click", () => choose({ rank: button.textContent }));
        cell.append(button);
      }
      say(button, String(row.rank));
      button.ariaLabel = `show the log of rank ${row.rank}`;
      button.ariaPressed = String(String(row.rank) === $("rank").value);
    } },
    { name: "node", of: "host", always: true },
    { name: "state", of: "state", always: true, draw: (cell, row) => toned(cell, row, row.state) },
    { name: "device", of: "device" },
    { name: "pid", of: "pid", number: true },
    { name: "CPU", of: "cpu", number: true },
    { name: "memory", of: "memory", number: true },
    { name: "GPU", of: "gpu", number: true },
    { name: "GPU memory", of: "gpu_memory", number: true },
  ];
  const NODES = [
    { name: "node rank", of: "rank", always: true },
    { name: "host", of: "host", always: true },
    { name: "workers", of: "workers", number: true },
    { name: "state", of: "state", always: true, draw: (cell, row) => toned(cell, row, row.state) },
  ];
  const ROUNDS = [
    { name: "round", of: "round" },
    { name: "began", of: "time", draw: (cell, row) => { say(cell, clock(row.time).short); cell.title = clock(row.time).long; } },
    { name: "workers", of: "workers", number: true },
    { name: "from", of: "from" },
    { name: "lasted", of: "lasted", number: true },
    { name: "end", of: "end", always: true, draw: (cell, row) => toned(cell, row, row.end) },
  ];

  function drawCluster(run) {
    const { workers, nodes, rounds } = run;
    $("cluster").hidden = !workers.length && !nodes.length;
    const rest = run.workers_total - workers.length;
    say($("workers-note"), rest > 0 ? `${workers.length} of ${run.workers_total} are listed, those that failed first` : "");
    drawTable($("workers"), WORKERS, workers);
    show($("gpus"), run.gpus.join("   "));
    $("nodes-part").hidden = !nodes.length;
    drawTable($("nodes"), NODES, nodes);
    $("rounds-part").hidden = rounds.length < 2;
    say($("rounds-name"), run.rounds_total > rounds.length ? `Rounds, the last ${rounds.length} of ${run.rounds_total}` : "Rounds");
    drawTable($("rounds"), ROUNDS, rounds);
    const select = $("rank"), ranks = workers.map((worker) => String(worker.rank));
    if (select.dataset.ranks !== ranks.join()) {
      const kept = select.value;
      select.replaceChildren(...ranks.map((rank) => element("option", { value: rank }, rank)));
      select.dataset.ranks = ranks.join();
      if (ranks.includes(kept)) select.value = kept;
    }
  }

  function drawEvents({ count, lines }, isNew) {
    const list = $("events");
    if (isNew) list.replaceChildren();
    const missed = count - known.events - lines.length;
    if (missed > 0) list.prepend(element("li", { className: "notable" }, element("time", {}, "…"), element("span", {}, `${missed} earlier sentences are left out`)));
    const atTop = list.scrollTop < 4, before = list.scrollHeight;
    for (const line of lines) {
      const when = clock(line.time), time = element("time", { title: when.long, dateTime: new Date(line.time * 1000).toISOString() }, when.short);
      const isTable = line.text.includes("\n") && / {3}/.test(line.text);
      list.prepend(element("li", { className: line.level }, time, element("span", { className: isTable ? "table" : "" }, line.text)));
    }
    while (list.children.length > EVENTS_MAX) list.lastChild.remove();
    if (!atTop) list.scrollTop += list.scrollHeight - before;
    $("words").hidden = !list.children.length;
  }

  function drawLog(log) {
    const pre = $("log"), atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
    $("rank").value = String(log.rank);
    $("stream").value = log.stream;
    pre.classList.toggle("silent", !log.lines.length);
    say(pre, log.lines.length ? log.lines.join("\n") : log.note ?? "nothing was written so far");
    if (atEnd || known.log.split("-", 3).join() !== log.stamp.split("-", 3).join()) pre.scrollTop = pre.scrollHeight;
  }

  // ---- what is received

  function take(run) {
    const isNew = run.run !== known.run;
    if (isNew) { forget(); known.run = run.run; }
    known.version = run.version;
    last = run;
    drawHead(run);
    if (!run.run) return;
    for (const name of CURVES) {
      const { edits, from, points } = run.curves[name], mine = curves[name];
      mine.edits = edits;
      mine.points.length = Math.min(from, mine.points.length);
      for (const point of points) mine.points.push(point);
    }
    if (run.marks) { curves.marks = run.marks.all; known.marks = run.marks.count; }
    drawFigures(run.figures);
    drawCharts();
    drawCluster(run);
    drawEvents(run.events, isNew);
    known.events = run.events.count;
    if (run.log) { drawLog(run.log); known.log = run.log.stamp; drawTable($("workers"), WORKERS, run.workers); }
  }

  function query() {
    const all = new URLSearchParams({ ...known, ...pick });
    for (const name of CURVES) all.set(name, `${curves[name].edits}.${curves[name].points.length}`);
    return all;
  }

  function choose(chosen) {
    Object.assign(pick, chosen);
    known.version = 0;
    asking?.abort("chosen");
  }

  function lost(text) {
    show($("lost"), text);
    say($("connection"), text ? "not connected" : "connected");
  }

  const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });
  // A page that nobody sees asks nothing; it catches up when it is seen again.
  const seen = () => new Promise((done) => {
    const check = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", check); done(); } };
    document.addEventListener("visibilitychange", check);
    check();
  });

  async function follow() {
    if (!token) return lost("The token is missing: open the address that enn top --web printed.");
    for (let failures = 0; ;) {
      await seen();
      asking = new AbortController();
      const late = setTimeout(() => asking.abort("late"), ASK_MAX_MS);
      try {
        const answer = await fetch(`/run?${query()}`, { headers: { authorization: `Bearer ${token}` }, cache: "no-store", signal: asking.signal });
        if (answer.status === 401) return lost("The token is that of another server: open the address that enn top --web printed last.");
        if (!answer.ok) throw new Error(await answer.text());
        const run = answer.status === 204 ? null : await answer.json();
        failures = 0;
        lost("");
        if (run) take(run);
      } catch (error) {
        if (asking.signal.reason === "chosen") continue;
        failures += 1;
        if (failures > 1) lost("The connection is lost: enn top --web has ended or cannot be reached. The page keeps what it has and tries again.");
        await pause(Math.min(AGAIN_MAX_MS, 250 * 2 ** failures));
        known.version = 0;
      } finally {
        clearTimeout(late);
      }
    }
  }

  for (const [id, value] of [["by-step", false], ["by-time", true]]) {
    $(id).addEventListener("click", () => {
      byTime = value;
      $("by-step").ariaPressed = String(!byTime);
      $("by-time").ariaPressed = String(byTime);
      drawCharts();
    });
  }
  $("details").addEventListener("click", () => {
    const isPlain = $("events").classList.toggle("plain");
    $("details").ariaPressed = String(!isPlain);
  });
  $("rank").addEventListener("change", () => choose({ rank: $("rank").value }));
  $("stream").addEventListener("change", () => choose({ stream: $("stream").value }));
  follow();
})();
