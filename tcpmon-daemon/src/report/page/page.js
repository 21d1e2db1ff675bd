// The report's page: draws the JSON object in #data. Text of the data is only ever inserted as text, never as markup.
"use strict";
(() => {
  const CAUSES = ["upstream", "application", "scheduler", "window", "memory"];
  const ENDS = ["preempted", "blocked", "exited", "unknown"];
  const PERCENTILES = ["p50", "p90", "p99"];
  const COLUMNS = ["gap", "length", "queueMin", "queueMax", "queueFirst", "queueLast", "buffer", "windowMin",
    "windowMax", "end"]; // of the cells, in the order of the data
  const MERGED = ["queueMin", "queueMax"]; // only of cells of several timeslices: one has them at its edges
  const AXIS_WIDTH = 78; // of all charts over time, so that their time axes lie below each other
  const LEAST_SPAN_US = 2; // times are whole microseconds: closer views would show nothing more
  const SHADED_PX = 3; // timeslices are shaded once they are as wide as this
  const MOST_ROWS = 64; // of the table of causes over time

  // ---- Numbers for people ----

  // Up to three digits, without zeros that say nothing.
  const short = (value) => String(Number(value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)));

  function scaled(value, step, units) {
    let unit = 0;
    for (; unit + 1 < units.length && value >= step - 0.5; unit += 1) value /= step;
    return `${short(value)}\u00a0${units[unit]}`;
  }

  const known = (show) => (value) => (value === null || value === undefined ? "not known" : show(value));
  const bytes = known((value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]));
  const rate = known((value) => scaled(value * 8, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]));
  const range = known(([least, most]) => (least === most ? bytes(least) : `${bytes(least)} to ${bytes(most)}`));
  const count = (value) => value.toLocaleString("en-US");
  const plural = (number, one) => `${count(number)} ${one}${number === 1 ? "" : "s"}`;

  const time = known((seconds) => {
    if (seconds < 0.9995) return seconds > 0 ? scaled(seconds * 1e9, 1000, ["ns", "µs", "ms"]) : "0\u00a0s";
    const [length, unit] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
    return `${short(seconds / length)}\u00a0${unit}`;
  });

  const percent = (share) =>
    share > 0 && share < 0.0005 ? "<0.1\u00a0%" : `${Number((share * 100).toFixed(1))}\u00a0%`;

  // Seconds with so many decimals. What is rounded to zero has no sign: a timeslice may begin just before the trace.
  const inSeconds = (us, decimals) => (us / 1e6).toFixed(decimals).replace(/^-(?=[0.]+$)/, "");

  // A moment of the trace, as exactly as a view of this length needs.
  const moment = (us, span) =>
    `${inSeconds(us, Math.min(Math.max(Math.ceil(3 - Math.log10(span / 1e6)), 0), 6))}\u00a0s`;

  const sum = (numbers) => numbers.reduce((all, number) => all + number, 0);
  const ends = (socket) => (socket.local === null ? "all other sockets" : `${socket.local} <- ${socket.remote}`);
  const readers = (socket) => socket.readers.map(([pid, name]) => `${name} (${pid})`).join(", ") || "not known";
  const limited = (socket) => CAUSES.map((cause) => socket.limited_seconds[cause] ?? 0);
  const slices = (socket) => sum(ENDS.map((end) => socket.timeslices[end] ?? 0));
  const kinds = (socket) => ENDS.filter((end) => socket.timeslices[end] > 0);
  const ended = (socket) => kinds(socket).map((end) => `${count(socket.timeslices[end])} ${end}`).join(", ");
  const spread = (of, show) => PERCENTILES.map((name) => `${name} ${show(of[name] ?? 0)}`).join(", ");

  function shares(seconds) {
    const all = sum(seconds);
    return seconds.map((value) => (all > 0 ? value / all : 0));
  }

  function inWords(parts) {
    const named = parts.map((share, cause) => [share, `${CAUSES[cause]} ${percent(share)}`]);
    const told = named.filter(([share]) => share >= 0.0005).sort(([a], [b]) => b - a);
    return told.map(([, words]) => words).join(", ") || "not known";
  }

  // ---- Elements ----

  const byId = (id) => document.getElementById(id);

  // An element. Children that are not elements become text.
  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
    element.append(...children.flat());
    return element;
  }

  // Sets the colour through the object model, which no content security policy forbids.
  function coloured(element, name) {
    element.style.setProperty("--of", `var(--${name})`);
    return element;
  }

  const key = (name) => coloured(el("i", { class: "box" }), name);

  // A table whose first column names the rows; `words` are the other columns that are no numbers.
  function table(kind, caption, heads, rows, words = []) {
    const look = (column) => (column === 0 || words.includes(column) ? null : "number");
    const head = (text, column) => el("th", { scope: "col", class: look(column) }, text);
    const cell = (content, column) =>
      column === 0 ? el("th", { scope: "row" }, content) : el("td", { class: look(column) }, content);
    return el("table", { class: kind }, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads.map(head))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))));
  }

  // ---- Colours: those of the style sheet; forgotten when they change ----

  let palette = {};

  function ink(name) {
    palette[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    return palette[name];
  }

  const colour = (name, alpha = "") => () => ink(name) + alpha;

  // ---- Head: where it was traced, what is wrong with it, what changed ----

  function fileLine(file) {
    const start = new Date(file.start_realtime_ns / 1e6).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
    const lost = Object.entries(file.lost ?? {}).map(([cause, number]) => `${count(number)} ${cause}`).join(", ");
    const state = file.lost === null ? "cut off" : lost ? `records lost (${lost})` : "nothing lost";
    return [`${file.name}: ${file.hostname}`, `Linux ${file.kernel_release}`, start, time(file.duration_seconds),
      plural(file.records, "record"), state, `tcpmon ${file.tcpmon_version}`].join(", ");
  }

  function showHead(data) {
    document.title = `tcpmon report: ${data.title}`;
    byId("title").textContent = document.title;
    for (const { files, caveats } of data.reports) {
      byId("files").append(...files.map((file) => el("li", {}, fileLine(file))));
      byId("caveats").append(...caveats.map((text) => el("p", { class: "warning" }, el("b", {}, "Warning: "), text)));
    }
  }

  function difference({ unit, before, after }) {
    if (before === null || after === null || (unit !== "percent" && before <= 0)) return "-";
    const value = unit === "percent" ? after - before : (after / before - 1) * 100;
    const shown = Math.abs(value).toFixed(1);
    return `${value < 0 && Number(shown) > 0 ? "−" : "+"}${shown} ${unit === "percent" ? "points" : "%"}`;
  }

  function showComparison({ sentence, changes }) {
    const show = { bytes_per_second: rate, bytes, seconds: time, percent: known((value) => percent(value / 100)) };
    const noise = (beyond) => (beyond === null ? "not known" : beyond ? "yes" : "no");
    const rows = changes.map((change) => [change.what, show[change.unit](change.before),
      show[change.unit](change.after), difference(change), noise(change.beyond_noise)]);
    byId("comparison-sentence").textContent = sentence;
    byId("comparison-table").append(table(null, "Numbers of both traces",
      ["Number", "Before (first)", "After (second)", "Change", "Beyond noise"], rows, [4]));
    byId("comparison").hidden = false;
  }

  // ---- The answer ----

  // Seconds by cause of the sockets that the verdict judges: the busiest, up to 99 % of the bytes.
  function judged(report) {
    let before = 0;
    const busiest = report.sockets.filter((socket) => {
      const counts = before < 0.99 * report.read_bytes;
      before += socket.read_bytes;
      return counts;
    });
    return CAUSES.map((_, cause) => sum(busiest.map((socket) => limited(socket)[cause])));
  }

  function causesBar(seconds) {
    const parts = shares(seconds);
    const piece = (share, cause) => {
      const words = `${CAUSES[cause]} ${percent(share)}`;
      const roomy = share >= 0.06;
      const part = coloured(el("div", { class: roomy ? CAUSES[cause] : "thin", title: words }, roomy ? words : ""),
        CAUSES[cause]);
      part.style.flex = `${share} 1 0`;
      return share > 0 ? [part] : [];
    };
    const entry = (share, cause) => el("li", { class: share > 0 ? null : "none" }, key(CAUSES[cause]),
      `${CAUSES[cause]} `, el("b", {}, percent(share)), share > 0 ? ` (${time(seconds[cause])})` : "");
    const label = `Share of the time by cause: ${inWords(parts)}`;
    return [el("div", { class: "bar", role: "img", "aria-label": label }, parts.flatMap(piece)),
      el("ul", { class: "legend" }, parts.map(entry))];
  }

  // The sentence begins with what matters most, up to the first colon: that part is shown large, with its margin.
  function showAnswer(report, title) {
    const { cause, margin_percent: margin, sentence } = report.verdict;
    const [head, ...rest] = sentence.split(": ");
    // Rounded up: a margin that is shown is never better than the real one.
    const shown = cause !== null && margin !== null ? `± ${Math.max(Math.ceil(margin), 1)} %` : "";
    const { read_bytes: read, duration_seconds: duration, sockets_total: sockets } = report;
    const seconds = judged(report);
    byId("answers").append(coloured(el("div", { class: "answer" }, title ? el("h3", {}, title) : "",
      el("p", { class: "head" }, `${head} `, el("span", {}, shown)), el("p", { class: "rest" }, rest.join(": ")),
      sum(seconds) > 0 ? causesBar(seconds) : el("p", { class: "note" }, "It is not known what limited the transfer."),
      el("p", { class: "note" }, `${bytes(read)} read in ${time(duration)}${duration > 0 ? ` (${rate(read / duration)})`
        : ""} from ${plural(sockets, "socket")}`)), cause ?? "line"));
  }

  // ---- The sockets ----

  function limitedBy({ cause, share_percent: share, sentence }) {
    if (cause === null) return sentence.split(":")[0];
    return share === null ? cause : `${cause} ${percent(share / 100)}`;
  }

  function showSockets(report, name) {
    const { sockets } = report;
    const title = `The busiest sockets${name ? `: ${name.toLowerCase()} trace` : ""}`;
    if (sockets.length === 0) {
      byId("sockets").append(el("p", {}, `${name ? `${name} trace: n` : "N"}othing was read, so there are no sockets to show.`));
      return;
    }
    const row = (socket) => {
      const { p50, p99 } = socket.fill_at_deactivation;
      return [el("button", { type: "button", class: "pick", "aria-pressed": "false" }, ends(socket)), readers(socket),
        bytes(socket.read_bytes), rate(socket.bytes_per_second), limitedBy(socket.verdict),
        time(socket.mean_wait_seconds), `${percent(p50)} / ${percent(p99)}`, count(slices(socket))];
    };
    const list = table("sockets", title, ["Socket", "Process", "Read", "Throughput", "Limited by", "Mean wait",
      "Fill p50 / p99", "Timeslices"], sockets.map(row), [1, 4]);
    list.querySelectorAll("tbody tr").forEach((line, at) =>
      line.addEventListener("click", () => choose(sockets[at], name, line)));
    const more = report.sockets_total - sockets.length;
    byId("sockets").append(
      el("div", { class: "scroll", role: "region", "aria-label": title, tabindex: 0 }, list),
      el("p", { class: "note" }, "Fill: share of the buffer in use when the reader left the CPU. Choose a row to see ",
        `its charts and numbers below.${more > 0 ? ` Not listed: ${plural(more, "socket")} with fewer bytes.` : ""}`));
  }

  // ---- Decoding ----

  // Varints, column by column. A value has up to 53 bits and its zigzag code one more, so the sign is taken off first,
  // and bits are added with a product: shifts have 32 bits.
  async function decode(chart) {
    const text = atob(chart.columns);
    const packed = new Uint8Array(text.length);
    for (let at = 0; at < packed.length; at += 1) packed[at] = text.charCodeAt(at);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const raw = new Uint8Array(await new Response(stream).arrayBuffer());
    let at = 0;
    const column = () => {
      const values = new Float64Array(chart.cells);
      let value = 0;
      for (let cell = 0; cell < values.length; cell += 1) {
        let byte = raw[at++];
        const negative = byte & 1;
        let magnitude = (byte & 0x7f) >> 1;
        for (let unit = 64; byte >= 0x80; unit *= 128) {
          byte = raw[at++];
          magnitude += (byte & 0x7f) * unit;
        }
        value += negative ? -magnitude - 1 : magnitude;
        values[cell] = value;
      }
      return values;
    };
    const names = chart.records_per_cell > 1 ? COLUMNS : COLUMNS.filter((name) => !MERGED.includes(name));
    const cells = Object.fromEntries(names.map((name) => [name, column()]));
    if (at !== raw.length) throw new Error("it is damaged");
    const edges = (pick) => cells.queueFirst.map((first, cell) => pick(first, cells.queueLast[cell]));
    cells.queueMin ??= edges(Math.min);
    cells.queueMax ??= edges(Math.max);
    return placed(cells, chart);
  }

  // Adds when each cell starts and stops, us after the start of the trace.
  function placed(cells, { cells: number, records, records_per_cell: perCell, start_seconds: begin }) {
    const [start, stop] = [new Float64Array(number), new Float64Array(number)];
    let now = Math.round(begin * 1e6);
    for (let cell = 0; cell < number; cell += 1) {
      start[cell] = now + cells.gap[cell];
      now = stop[cell] = start[cell] + cells.length[cell];
    }
    // The last cell can stand for fewer timeslices than the others.
    const recordsOf = (cell) => (cell + 1 < number ? perCell : records - (number - 1) * perCell);
    return { ...cells, start, stop, number, perCell, recordsOf };
  }

  // ---- What a view of the time shows ----

  // Cells that share some time with the view (one that only touches it does not), and the next one on either side.
  // All are compared: cells of several threads overlap, so neither their starts nor their stops are in order.
  function inView({ start, stop, number }, from, to) {
    const found = [];
    let [before, after] = [-1, -1];
    for (let cell = 0; cell < number; cell += 1) {
      if (stop[cell] <= from && start[cell] < from) before = before < 0 || stop[cell] >= stop[before] ? cell : before;
      else if (start[cell] >= to && stop[cell] > to) after = after < 0 || start[cell] < start[after] ? cell : after;
      else found.push(cell);
    }
    return { found, wider: [before, ...found, after].filter((cell) => cell >= 0) };
  }

  // The curves have these columns: time, buffer, window (highest, lowest), queue (highest, lowest, line).

  // Both edges of each of these cells, in order of time.
  function edges(cells, shown) {
    const { start, stop, queueFirst, queueLast, perCell } = cells;
    const both = (cell) => [[start[cell], cell, queueFirst[cell]], [stop[cell], cell, queueLast[cell]]];
    const points = shown.flatMap(both).sort(([a], [b]) => a - b);
    const value = (column) => points.map(([, cell]) => cells[column][cell]);
    const line = points.map(([, , queue]) => queue);
    const band = perCell === 1 ? [line, line] : [value("queueMax"), value("queueMin")];
    return [points.map(([x]) => x), value("buffer"), value("windowMax"), value("windowMin"), ...band, line];
  }

  // One point per column of pixels: the lowest and highest values of all cells in it, and the mean of the queue.
  function reduced(cells, shown, from, to, columns) {
    const width = (to - from) / columns;
    const column = (x) => Math.min(Math.max(Math.floor((x - from) / width), 0), columns - 1);
    const fields = [["buffer", Math.max, 0], ["windowMax", Math.max, 0], ["windowMin", Math.min, Infinity],
      ["queueMax", Math.max, 0], ["queueMin", Math.min, Infinity]];
    const kept = fields.map(([name, pick, none]) => [cells[name], pick, new Float64Array(columns).fill(none)]);
    const [total, number] = [new Float64Array(columns), new Float64Array(columns)];
    for (const cell of shown) {
      const [first, last] = [column(cells.start[cell]), column(cells.stop[cell])];
      const rise = cells.queueLast[cell] - cells.queueFirst[cell];
      for (let at = first; at <= last; at += 1) {
        for (const [values, pick, result] of kept) result[at] = pick(result[at], values[cell]);
        total[at] += cells.queueFirst[cell] + (last > first ? (at - first) / (last - first) : 0.5) * rise;
        number[at] += 1;
      }
    }
    const used = [...number.keys()].filter((at) => number[at] > 0);
    return [used.map((at) => from + (at + 0.5) * width), ...kept.map(([, , result]) => used.map((at) => result[at])),
      used.map((at) => total[at] / number[at])];
  }

  // Timeslices per column of pixels, one row per kind of end. A timeslice counts where it starts; merged cells are
  // spread over their length, and have one row, because only the last of their ends is known.
  function density(cells, shown, from, to, columns, rowOf, rows) {
    const width = (to - from) / columns;
    const counts = Array.from({ length: rows }, () => new Float64Array(columns));
    for (const cell of shown) {
      const first = Math.floor((cells.start[cell] - from) / width);
      const last = cells.perCell === 1 ? first : Math.floor((cells.stop[cell] - from) / width);
      const perUs = cells.recordsOf(cell) / cells.length[cell];
      for (let at = Math.max(first, 0); at <= Math.min(last, columns - 1); at += 1) {
        const [left, right] = [from + at * width, from + (at + 1) * width];
        const us = Math.min(cells.stop[cell], right) - Math.max(cells.start[cell], left);
        counts[rowOf(cell)][at] += last > first ? us * perUs : cells.recordsOf(cell);
      }
    }
    const most = counts.flatMap((row) => [...row]).reduce((a, b) => Math.max(a, b), 0);
    return { counts, most, perSecond: (most / width) * 1e6 };
  }

  // ---- Charts ----

  const charts = new Set(); // all that are shown: they follow the width of the page and its colours

  function draw(id, label, options, data) {
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const thin = { stroke: colour("grid"), width: 1, size: 5 };
    const axis = (own) => ({
      stroke: colour("quiet"), font, labelFont: font, labelSize: 20, grid: thin, ticks: thin, ...own });
    const chart = new uPlot({
      width: Math.max(byId(id).clientWidth, 200), legend: { show: false }, padding: [8, 30, 0, 0],
      ...options, axes: options.axes.map(axis),
    }, data, byId(id));
    chart.ctx.canvas.setAttribute("role", "img");
    chart.ctx.canvas.setAttribute("aria-label", label);
    charts.add(chart);
    return chart;
  }

  // Draws within the plotting area only; `x` turns a value into a position on the canvas.
  function within(chart, paint) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint(ctx, bbox, (value) => chart.valToPos(value, "x", true));
    ctx.restore();
  }

  // Three charts over the same part of the time: the queue, the timeslices, the causes.
  class Timeline {
    constructor(socket, cells) {
      Object.assign(this, { socket, cells, pieces: socket.chart.pieces });
      this.start = cells.start.reduce((a, b) => Math.min(a, b));
      this.stop = cells.stop.reduce((a, b) => Math.max(a, b), this.start + LEAST_SPAN_US);
      this.rows = cells.perCell > 1 || kinds(socket).length === 0 ? ["timeslices"] : kinds(socket);
      this.rowOf = (cell) => Math.max(this.rows.indexOf(ENDS[cells.end[cell]]), 0);
      this.queue = this.queueChart();
      const rows = this.rows.length;
      this.lane = this.chart("lane-plot", `Timeslices over time by how they ended: ${ended(socket)}`, 26 * rows + 20, {
        splits: () => this.rows.map((_, row) => rows - row - 0.5), values: () => this.rows,
        space: 1, grid: { show: false }, ticks: { show: false }, gap: 6,
      }, () => [0, rows], { hooks: { draw: [() => this.drawLane()] } });
      const all = inWords(shares(limited(socket)));
      this.causes = this.chart("causes-plot", `What limited the connection over time; in total: ${all}`, 190,
        { space: 24, values: (_, splits) => splits.map((value) => `${value} %`) }, () => [0, 100],
        { hooks: { draw: [() => this.drawCauses()] } });
      this.show(this.start, this.stop);
    }

    // A chart with the common time axis, its cursor, and dragging to zoom. The last has the labels of the time.
    chart(id, label, height, axis, yRange, { hooks = {}, series = [{ points: { show: false } }], bands = [] }) {
      const last = id === "causes-plot";
      const decimals = (step) => [0, 1, 2, 3, 4, 5, 6].find((places) => ((step / 1e6) * 10 ** places) % 1 < 1e-6) ?? 7;
      const timeAxis = {
        size: last ? 30 : 6, label: last ? "seconds after the start of the trace" : undefined, ticks: { show: last },
        values: (_, splits, __, ___, step) => splits.map((us) => (last ? inSeconds(us, decimals(step)) : "")),
        // Room for a label, whose decimals depend on how much is shown.
        space: (_, __, from, to) => 30 + 7.5 * moment(to, (to - from) * 10).length,
      };
      return draw(id, label, {
        height, bands, axes: [timeAxis, { size: AXIS_WIDTH, ...axis }], series: [{}, ...series],
        scales: { x: { time: false }, y: { range: yRange } },
        hooks: { ...hooks, setSelect: [(chart) => this.dragged(chart)] },
        cursor: {
          y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 3 },
          bind: { dblclick: () => () => this.do("reset") },
          // The other charts follow the pointer, but only the chart that is dragged in zooms.
          sync: { key: "time", scales: ["x", null], setSeries: false,
            filters: { sub: (type) => type !== "mousedown" && type !== "mouseup" } },
        },
      }, Array(series.length + 1).fill([]));
    }

    queueChart() {
      const line = (name, more) => ({ stroke: colour(name), width: 1, points: { show: false }, ...more });
      // A few points are shown as such, so that each activation and deactivation can be seen.
      const few = { show: () => this.exact && this.count <= 60, size: 6, fill: colour("queue") };
      const series = [line("buffer", { dash: [7, 5], width: 1.5 }), line("window"), line("window"),
        line("queue", { width: 0 }), line("queue", { width: 0 }), line("queue", { width: 1.75, points: few })];
      const bands = [{ series: [2, 3], fill: colour("window", "22") }, { series: [4, 5], fill: colour("queue", "60") }];
      // The largest value of what is switched on, of the points beside the view, too: lines come from there.
      const top = (chart) => chart.series.reduce((most, { show }, at) =>
        (at > 0 && show ? chart.data[at].reduce((a, b) => Math.max(a, b), most) : most), 0);
      const { longest_queue_bytes: longest, rcvbuf_bytes: buffer, window_bytes: window } = this.socket;
      const chart = this.chart("queue-plot", `Receive queue over time: longest ${bytes(longest)}; receive buffer ` +
        `${range(buffer)}; advertised window ${range(window)}`, 270, {
        incrs: Array.from({ length: 53 }, (_, power) => 2 ** power), space: 34,
        values: (_, splits) => splits.map((value) => bytes(value)),
      }, (of) => [0, top(of) * 1.06 || 1], { series, bands,
        hooks: { drawClear: [() => this.drawShade()], setCursor: [() => this.queue && this.readOut()] } });
      for (const [id, curves] of [["show-buffer", [1]], ["show-window", [2, 3]]]) {
        const set = () => chart.batch(() => curves.forEach((at) => chart.setSeries(at, { show: byId(id).checked })));
        byId(id).onchange = set;
        set();
      }
      return chart;
    }

    dragged(chart) {
      const { left, width } = chart.select;
      chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      if (width > 0) this.show(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
    }

    // Shows this part of the time, us after the start of the trace.
    show(from, to) {
      const span = Math.min(Math.max(to - from, LEAST_SPAN_US), this.stop - this.start);
      this.from = Math.min(Math.max((from + to - span) / 2, this.start), this.stop - span);
      this.to = this.from + span;
      const { found, wider } = inView(this.cells, this.from, this.to);
      const columns = Math.max(Math.round(this.queue.bbox.width / devicePixelRatio), 10);
      this.found = found;
      this.count = found.reduce((all, cell) => all + this.cells.recordsOf(cell), 0);
      this.merged = found.length > columns;
      this.exact = !this.merged && this.cells.perCell === 1;
      const length = found.reduce((all, cell) => all + this.cells.length[cell], 0);
      this.shaded = this.exact && (length / found.length) * (columns / span) >= SHADED_PX;
      this.density = density(this.cells, found, this.from, this.to, columns, this.rowOf, this.rows.length);
      // With the cells beside the view, so that lines leave it instead of ending in it.
      const curve = this.merged ? reduced(this.cells, found, this.from, this.to, columns)
        : edges(this.cells, wider);
      const nothing = [[this.from, this.to], [null, null]];
      for (const [chart, data] of [[this.queue, curve], [this.lane, nothing], [this.causes, nothing]]) {
        chart.batch(() => {
          chart.setData(data, false);
          chart.setScale("x", { min: this.from, max: this.to });
        });
      }
      this.describe(span, Math.round(this.count / columns));
    }

    // Says what is visible, and what a point stands for.
    describe(span, perColumn) {
      const { perCell } = this.cells;
      const point = this.merged ? `about ${plural(perColumn, "timeslice")}` : plural(perCell, "timeslice");
      const how = this.exact ? "each timeslice is drawn" : `each point is ${point}: lowest and highest value kept`;
      byId("visible").textContent = `${moment(this.from, span)} to ${moment(this.to, span)} (${time(span / 1e6)}), ` +
        `${plural(this.count, "timeslice")}; ${how}${perCell > 1 ? " (the report keeps no more)" : ""}`;
      byId("shade-key").hidden = !this.shaded;
      byId("lane-note").textContent = this.exact ? "each bar is a timeslice"
        : `how many${perCell > 1 ? " (merged: how each ended is not known)" : ""}; ` +
          `the tallest bar is ${count(Number(this.density.perSecond.toPrecision(3)))} per second`;
      const judgedAtAll = this.pieces.limited_seconds.some((piece) => sum(piece) > 0);
      byId("causes-note").textContent = judgedAtAll ? `in pieces of ${time(this.pieces.seconds)}` : "not known";
      this.readOut();
    }

    drawShade() {
      if (!this.shaded) return;
      within(this.queue, (ctx, bbox, x) => {
        for (const cell of this.found) {
          const [left, right] = [x(this.cells.start[cell]), x(this.cells.stop[cell])];
          ctx.fillStyle = ink("shade");
          ctx.fillRect(left, bbox.top, right - left, bbox.height);
          // How it ended; the rows below say the same by their names.
          ctx.fillStyle = ink(ENDS[this.cells.end[cell]] ?? "unknown");
          ctx.fillRect(right - 1.5 * devicePixelRatio, bbox.top, 3 * devicePixelRatio, bbox.height / 14);
        }
      });
    }

    drawLane() {
      within(this.lane, (ctx, bbox, x) => {
        const height = bbox.height / this.rows.length;
        const room = height - 4 * devicePixelRatio;
        const bar = (row, left, width, part) => {
          ctx.fillStyle = ink(this.rows[row] === "timeslices" ? "quiet" : this.rows[row]);
          const bottom = bbox.top + (row + 1) * height - 2 * devicePixelRatio;
          ctx.fillRect(left, bottom - part * room, width, part * room);
        };
        if (this.exact) {
          for (const cell of this.found) {
            const left = x(this.cells.start[cell]);
            bar(this.rowOf(cell), left, Math.max(x(this.cells.stop[cell]) - left, devicePixelRatio), 1);
          }
        } else {
          const { counts, most } = this.density;
          const width = bbox.width / counts[0].length;
          counts.forEach((row, at) => row.forEach((number, column) =>
            bar(at, bbox.left + column * width, width, most > 0 ? number / most : 0)));
        }
        ctx.fillStyle = ink("grid");
        this.rows.forEach((_, row) => ctx.fillRect(bbox.left, bbox.top + row * height, bbox.width, 1));
      });
    }

    drawCauses() {
      const { start_seconds: start, seconds, limited_seconds: pieces } = this.pieces;
      within(this.causes, (ctx, bbox, x) => pieces.forEach((piece, at) => {
        const [left, right] = [at, at + 1].map((edge) => Math.round(x((start + edge * seconds) * 1e6)));
        let bottom = bbox.top + bbox.height;
        shares(piece).forEach((share, cause) => {
          ctx.fillStyle = ink(CAUSES[cause]);
          bottom -= share * bbox.height;
          ctx.fillRect(left, bottom, Math.max(right - left, 1), share * bbox.height);
        });
      }));
    }

    // The values below the pointer, in words.
    readOut() {
      const { cursor: { left, idx }, data } = this.queue;
      byId("readout").textContent = "Point at a chart to read its values. Drag to zoom in, double click to zoom out.";
      if (!(left >= 0) || !(data[0].length > (idx ?? Infinity))) return;
      const us = this.queue.posToVal(left, "x");
      const [, buffer, windowHigh, windowLow, high, low, mean] = data.map((column) => column[idx]);
      const { start, stop, length, end, queueFirst, queueLast } = this.cells;
      const slice = this.exact ? this.found.find((cell) => start[cell] <= us && us <= stop[cell]) : undefined;
      const queue = slice !== undefined ? `${bytes(queueFirst[slice])}, at the end ${bytes(queueLast[slice])}`
        : this.exact ? bytes(mean) : `${bytes(mean)} (${range([low, high])})`;
      const what = slice !== undefined ? `; on the CPU for ${time(length[slice] / 1e6)}, then ${ENDS[end[slice]]}`
        : this.exact ? "; between two timeslices" : "";
      const { start_seconds: begin, seconds, limited_seconds: pieces } = this.pieces;
      const piece = pieces[Math.floor((us / 1e6 - begin) / seconds)] ?? [];
      byId("readout").textContent = `At ${moment(us, (this.to - this.from) / 10)}: queue ${queue}; window ` +
        `${range([windowLow, windowHigh])}; buffer ${bytes(buffer)}${what}` +
        (sum(piece) > 0 ? `; limited by ${inWords(shares(piece))}` : "");
    }

    // What the buttons and keys do.
    do(what) {
      const { from, to, cells: { queueMax, start, stop, number } } = this;
      const span = to - from;
      const views = {
        closer: () => [from + span * 0.375, to - span * 0.375], wider: () => [from - span * 1.5, to + span * 1.5],
        earlier: () => [from - span / 2, to - span / 2], later: () => [from + span / 2, to + span / 2],
        reset: () => [this.start, this.stop],
        longest: () => {
          const best = queueMax.reduce((most, value, cell) => (value > queueMax[most] ? cell : most), 0);
          return [start[Math.max(best - 10, 0)], stop[Math.min(best + 10, number - 1)]];
        },
      };
      if (views[what]) this.show(...views[what]());
    }

    view() {
      return { from_seconds: this.from / 1e6, to_seconds: this.to / 1e6, timeslices: this.count, exact: this.exact };
    }
  }

  // ---- Distributions ----

  // Steps of percent over bins; there is one edge more than there are bins.
  function histogram(id, label, edgesOf, curves, axis, { hooks = {}, headroom = 1.1 } = {}) {
    const part = (counts) => [...shares(counts).map((share) => share * 100), 0];
    const series = curves.map(([, name, dash]) => ({ stroke: colour(name), fill: colour(name, "38"), width: 1.75, dash,
      paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }));
    draw(id, label, {
      height: 230, cursor: { show: false }, hooks, series: [{}, ...series],
      scales: { x: { time: false, range: () => [edgesOf[0], edgesOf.at(-1)] },
        y: { range: (_, __, most) => [0, most * headroom || 1] } },
      axes: [{ size: 28, space: 60, ...axis }, { size: 52, space: 30, label: "percent of timeslices",
        values: (_, splits) => splits.map((value) => `${value} %`) }],
    }, [edgesOf, ...curves.map(([counts]) => part(counts))]);
  }

  const lastUsed = (counts) => counts.reduce((last, number, bin) => (number > 0 ? bin : last), 0);

  function showFills(socket) {
    const { bounds, activation, deactivation } = socket.chart.fills;
    const words = `at activation ${spread(socket.fill_at_activation, percent)}; ` +
      `at deactivation ${spread(socket.fill_at_deactivation, percent)}`;
    byId("fills-note").textContent = `Share of the buffer in use ${words}.`;
    // More than the whole buffer is rare: its bins are shown only if they are used.
    const whole = bounds.findIndex((bound) => bound >= 1);
    const shown = Math.max(lastUsed(activation), lastUsed(deactivation), whole) + 1;
    // A first bin that ends at 0 is that of an empty buffer: it gets some width to be seen.
    const edgesOf = [bounds[0] > 0 ? 0 : -(bounds[1] ?? 0.05), ...bounds.slice(0, shown)];
    histogram("fills-plot", `Share of the buffer in use: ${words}`, edgesOf,
      [[activation.slice(0, shown), "activation", [5, 4]], [deactivation.slice(0, shown), "queue"]],
      { label: "share of the receive buffer in use",
        values: (_, splits) => splits.map((value) => `${Number((value * 100).toFixed(2))} %`) });
  }

  function showWaits(socket) {
    const { bounds_seconds: bounds, counts } = socket.chart.waits;
    const of = socket.run_queue_wait_seconds;
    const words = `${spread(of, time)}; total ${time(of.sum)}`;
    byId("waits-note").textContent = `Per timeslice ${words}.`;
    // The axis is that of the logarithm. The first bin begins at 0, which has no place there: it gets half a decade.
    const floor = Math.log10(bounds.find((bound) => bound > 0) ?? 1e-6) - 0.5;
    const log = (seconds) => (seconds > 0 ? Math.max(Math.log10(seconds), floor) : floor);
    const first = Math.max(counts.findIndex((number) => number > 0) - 1, 0);
    const last = lastUsed(counts) + 2;
    const edgesOf = [bounds[0] > 0 ? floor : floor - 0.5, ...bounds.map(log)].slice(first, last + 1);
    const guides = (chart) => within(chart, (ctx, bbox, x) => PERCENTILES.forEach((name, row) => {
      ctx.font = `${12 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
      const text = `${name} ${time(of[name] ?? 0)}`;
      const at = Math.max(x(log(of[name] ?? 0)), bbox.left);
      const flipped = at + ctx.measureText(text).width + 10 * devicePixelRatio > bbox.left + bbox.width;
      const top = bbox.top + (15 * row + 2) * devicePixelRatio;
      ctx.textAlign = flipped ? "right" : "left";
      ctx.textBaseline = "top";
      ctx.fillStyle = ink("text");
      ctx.fillRect(at, top, devicePixelRatio, bbox.height);
      // On a border of the page's colour: labels lie on lines of others.
      ctx.strokeStyle = ink("page");
      ctx.lineWidth = 4 * devicePixelRatio;
      const left = at + (flipped ? -5 : 6) * devicePixelRatio;
      ctx.strokeText(text, left, top);
      ctx.fillText(text, left, top);
    }));
    histogram("waits-plot", `Wait in the run queue before each timeslice: ${words}`, edgesOf,
      [[counts.slice(first, last), "scheduler"]],
      { label: "wait, logarithmic", incrs: [1, 2, 3], values: (_, splits) => splits.map((power) => time(10 ** power)) },
      { hooks: { draw: [guides] }, headroom: 1.4 });
  }

  // ---- Tables of the chosen socket ----

  function numbersTables(socket) {
    const durations = (of) => `${time(of.sum)} in total; per timeslice ${spread(of, time)}`;
    const parts = shares(limited(socket));
    const margin = known((points) => `± ${points.toFixed(1)} %`);
    const groups = {
      "The transfer": [["socket", ends(socket)], ["readers (process id)", readers(socket)],
        ["read", bytes(socket.read_bytes)], ["arrived", bytes(socket.arrived_bytes)],
        ["duration", time(socket.duration_seconds)], ["throughput", rate(socket.bytes_per_second)],
        ["round trip", time(socket.round_trip_seconds)],
        ["in flight (throughput x round trip)", bytes(socket.bytes_in_flight)]],
      "What limited it": [["verdict", limitedBy(socket.verdict)],
        ["margin of the largest share", margin(socket.verdict.margin_percent)],
        ...limited(socket).map((seconds, at) => [CAUSES[at], `${percent(parts[at])} of the time, ${time(seconds)}`])],
      "Bytes that waited": [["mean wait", time(socket.mean_wait_seconds)],
        ["mean wait for a CPU", time(socket.mean_scheduler_wait_seconds)],
        ["longest receive queue", bytes(socket.longest_queue_bytes)],
        ["share of the buffer at activation", spread(socket.fill_at_activation, percent)],
        ["share of the buffer at deactivation", spread(socket.fill_at_deactivation, percent)],
        ["receive buffer", range(socket.rcvbuf_bytes)], ["times the buffer grew", count(socket.growths)],
        ["advertised window", range(socket.window_bytes)],
        ["activations and deactivations with window 0", count(socket.zero_windows)]],
      "The reader": [["timeslices", `${count(slices(socket))}: ${ended(socket)}`],
        ["records", `${count(socket.records)}, of which ${count(socket.partial_records)} partial`],
        ["on the CPU", durations(socket.on_cpu_seconds)],
        ["wait in the run queue", durations(socket.run_queue_wait_seconds)]],
    };
    return Object.entries(groups).map(([name, rows]) => table("numbers", name, ["Number", "Value"], rows, [1]));
  }

  function causesTable({ start_seconds: start, seconds, limited_seconds: pieces }) {
    const each = Math.max(Math.ceil(pieces.length / MOST_ROWS), 1);
    const span = each * seconds * 1e6;
    const rows = [];
    for (let at = 0; at < pieces.length; at += each) {
      const together = pieces.slice(at, at + each);
      const totals = CAUSES.map((_, cause) => sum(together.map((piece) => piece[cause])));
      const [from, to] = [at, at + together.length].map((edge) => moment((start + edge * seconds) * 1e6, span));
      const parts = shares(totals).map((share) => (sum(totals) > 0 ? percent(share) : "-"));
      rows.push([`${from} to ${to}`, ...parts, time(sum(totals))]);
    }
    return table(null, "Share of the time by cause", ["Time", ...CAUSES, "Time with a known cause"], rows);
  }

  // ---- The chosen socket ----

  let chosen = null;
  let timeline = null;

  function markRow(line) {
    for (const row of document.querySelectorAll(".sockets tbody tr")) {
      row.classList.toggle("chosen", row === line);
      row.querySelector("button").setAttribute("aria-pressed", String(row === line));
    }
  }

  // Shows the words and numbers; returns whether there is something to draw.
  function showWords(socket, name) {
    const drawable = socket.chart !== null && socket.chart.cells > 0;
    byId("socket").hidden = false;
    byId("socket-title").textContent = `${name ? `${name} trace: ` : ""}${ends(socket)}, ${readers(socket)}`;
    byId("socket-sentence").textContent = socket.verdict.sentence;
    byId("numbers").replaceChildren(...numbersTables(socket));
    byId("no-chart").textContent = drawable ? "" : "The report has no curve of this socket. Its numbers are below.";
    for (const id of ["time", "distributions", "causes-details"]) byId(id).hidden = !drawable;
    if (drawable) byId("causes-table").replaceChildren(causesTable(socket.chart.pieces));
    return drawable;
  }

  async function choose(socket, name, line) {
    chosen = socket;
    timeline = null;
    charts.forEach((chart) => chart.destroy());
    charts.clear();
    markRow(line);
    if (!showWords(socket, name)) return;
    showFills(socket);
    showWaits(socket);
    try {
      const cells = await decode(socket.chart);
      // Another row may have been chosen meanwhile.
      if (chosen === socket) timeline = new Timeline(socket, cells);
    } catch (error) {
      byId("time").hidden = true;
      byId("no-chart").textContent = `The curve cannot be drawn: ${error.message}. The numbers are below.`;
    }
    // uPlot draws in a microtask: after the next task, everything is on its canvas.
    await new Promise((drawn) => { setTimeout(drawn); });
  }

  // ---- The page as a whole ----

  function redraw() {
    palette = {};
    charts.forEach((chart) => chart.redraw(true, true));
  }

  function resize() {
    for (const chart of charts) {
      chart.setSize({ width: Math.max(chart.root.parentElement.clientWidth, 200), height: chart.height });
    }
    timeline?.show(timeline.from, timeline.to);
  }

  // Paper is white and has no pointer: the colours of the light theme, the width of a page, and everything unfolded.
  function printing(on) {
    document.documentElement.classList.toggle("printing", on);
    byId("causes-details").open = on;
    resize();
    redraw();
  }

  function connect() {
    document.querySelector(".buttons").addEventListener("click", (event) => timeline?.do(event.target.dataset.do));
    const keys = { "+": "closer", "=": "closer", "-": "wider", ArrowLeft: "earlier", ArrowRight: "later", 0: "reset" };
    byId("time").addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      timeline?.do(keys[event.key]);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", () => printing(true));
    addEventListener("afterprint", () => printing(false));
    let width = document.body.clientWidth;
    new ResizeObserver(() => {
      if (width !== document.body.clientWidth) resize();
      width = document.body.clientWidth;
    }).observe(document.body);
  }

  async function open() {
    const data = JSON.parse(byId("data").textContent);
    const two = data.reports.length > 1;
    showHead(data);
    if (data.comparison) showComparison(data.comparison);
    data.reports.forEach((report, at) => {
      const name = two ? ["First", "Second"][at] : "";
      showAnswer(report, two ? `${name}: ${report.files.map((file) => file.name).join(", ")}` : "");
      showSockets(report, name);
    });
    byId("cause-keys").append(...CAUSES.map((cause) => el("span", { class: "key" }, key(cause), cause)));
    connect();
    const first = data.reports.findIndex((report) => report.sockets.length > 0);
    if (first >= 0) {
      await choose(data.reports[first].sockets[0], two ? ["First", "Second"][first] : "",
        document.querySelector(".sockets tbody tr"));
    }
    window.tcpmon.openedMilliseconds = performance.now();
    document.body.dataset.ready = "1";
  }

  window.tcpmon = {
    openedMilliseconds: null,
    view: () => timeline?.view() ?? null,
    zoom: (from, to) => timeline?.show(from * 1e6, to * 1e6),
  };
  window.tcpmon.ready = open().catch((error) => {
    byId("caveats").append(el("p", { class: "warning" }, `The report cannot be shown: ${error.message}`));
    throw error;
  });
})();
