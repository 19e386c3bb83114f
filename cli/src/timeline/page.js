"use strict";
(() => {
  const HEIGHT = 22, OVERVIEW = 1000;
  const data = JSON.parse(document.getElementById("data").textContent);
  const texts = data.texts;
  const $ = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const utc = (time) => new Date(time * 1000).toISOString().replace("T", " ").replace(".000Z", "");
  const span = (seconds) => {
    const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    return h ? `${h}h${m}m${s}s` : m ? `${m}m${s}s` : `${s}s`;
  };

  // The attempts, and a lane for each node, in the order of its first attempt.
  const attempts = data.rows.map((row) => {
    const [node, attempt, step, from, to, result, message, started, drain, drained, soak, ended, before, after, pods, running, moved] = row;
    return {
      node, attempt, step, from: texts[from], to: texts[to], result: texts[result], message, started, drain, drained, soak, ended,
      before, after, pods, running, moved, succeeded: texts[result] === data.succeeds,
      // One that was ended from outside has neither succeeded nor failed. A simulation has none.
      failed: texts[result] !== data.succeeds && !(data.withdrawn ?? []).includes(texts[result]),
    };
  }).sort((a, b) => a.started - b.started);
  const byNode = new Map();
  for (const attempt of attempts) {
    if (!byNode.has(attempt.node)) byNode.set(attempt.node, { node: attempt.node, attempts: [], moved: 0, failed: false });
    const lane = byNode.get(attempt.node);
    lane.attempts.push(attempt);
    // A simulation counts them only.
    lane.moved += attempt.moved ?? attempt.pods.filter((pod) => texts[pod[5]] !== "Stayed").length;
    lane.failed ||= attempt.failed;
  }
  const lanes = [...byNode.values()];
  const text = (lane) => lane.text ??= lane.attempts.flatMap((attempt) => [
    attempt.node, ...attempt.pods.map((pod) => `${texts[pod[0]]}/${pod[1]} ${texts[pod[2]]}`), ...attempt.running,
  ]).join("\n").toLowerCase();

  // The whole range of time, and the part of it that is shown.
  let first = data.begun, last = data.ended ?? data.begun;
  for (const entry of data.entries) last = Math.max(last, entry.time);
  for (const attempt of attempts) {
    first = Math.min(first, attempt.started);
    last = Math.max(last, attempt.ended);
  }
  last = Math.max(last, first + 60);
  let [from, to] = [first, last];
  const place = (time) => ((time - from) / (to - from)) * 100;

  // Bands between two entries, and lines at one.
  const bands = [], lines = [];
  const open = {};
  const ENDS = { "updates were enabled again": "paused", "the rollout is no longer braked": "braked" };
  const begin = (kind, time) => { open[kind] ??= time; };
  const end = (kind, time) => {
    if (open[kind] !== undefined) bands.push({ kind, from: open[kind], to: time });
    delete open[kind];
  };
  const firstWindow = data.entries.find((entry) => entry.kind.startsWith("Window"));
  if (firstWindow?.kind === "WindowOpened") begin("closed", first);
  for (const entry of data.entries) {
    if (entry.kind === "Frozen") begin("frozen", entry.time);
    if (entry.kind === "Braked") begin("braked", entry.time);
    if (entry.kind === "Paused") begin("paused", entry.time);
    if (entry.kind === "WindowClosed") begin("closed", entry.time);
    if (entry.kind === "WindowOpened") end("closed", entry.time);
    // The message tells which of them is over.
    if (entry.kind === "Resumed") end(ENDS[entry.message] ?? "frozen", entry.time);
    if (entry.kind === "StepPassed" || entry.kind === "Approved") lines.push(entry);
  }
  for (const kind of Object.keys(open)) end(kind, last);
  const NAMES = { frozen: "frozen by failures", braked: "braked", paused: "updates disabled", closed: "window closed" };

  const mark = (element, start, stop) => {
    element.style.left = `${place(start)}%`;
    if (stop !== undefined) element.style.width = `${place(stop) - place(start)}%`;
    return element;
  };
  const PHASES = ["prepare", "drain", "reboot", "soak"];
  const bars = (track, attempt) => {
    const times = [attempt.started, attempt.drain, attempt.drained, attempt.soak];
    for (let i = 0; i < times.length; i += 1) {
      if (times[i] === null) continue;
      const stop = times.slice(i + 1).find((time) => time !== null) ?? attempt.ended;
      if (stop < from || times[i] > to) continue;
      const bar = mark(make("span", `bar ${PHASES[i]}`), times[i], stop);
      bar.title = `${PHASES[i]}: ${utc(times[i])}, ${span(stop - times[i])}`;
      track.append(bar);
    }
    if (attempt.failed) {
      const cross = mark(make("span", "cross", "✕"), attempt.ended);
      cross.title = `${attempt.result}: ${attempt.message}`;
      track.append(cross);
    }
  };

  let shown = lanes, chosen = null;
  const draws = () => {
    const top = $("lanes").scrollTop, many = Math.ceil($("lanes").clientHeight / HEIGHT) + 2;
    const start = Math.max(0, Math.floor(top / HEIGHT) - 1);
    const rows = document.createDocumentFragment();
    for (let index = start; index < Math.min(shown.length, start + many); index += 1) {
      const lane = shown[index];
      const row = make("div", lane.failed ? "row missed" : "row");
      row.id = `lane-${index}`;
      row.style.top = `${index * HEIGHT}px`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(lane === chosen));
      row.setAttribute("aria-posinset", index + 1);
      row.setAttribute("aria-setsize", shown.length);
      const results = lane.attempts.map((attempt) => `${attempt.result} in ${span(attempt.ended - attempt.started)}`);
      row.setAttribute("aria-label", `${lane.node}: ${results.join(", ")}; pods moved: ${lane.moved}`);
      const name = make("span", "name", lane.node);
      name.title = lane.node;
      const track = make("span", "track");
      for (const attempt of lane.attempts) bars(track, attempt);
      row.append(name, track, make("span", "pods", lane.moved));
      row.addEventListener("click", () => choose(index));
      rows.append(row);
    }
    $("rows").replaceChildren(rows);
    const active = chosen && shown.indexOf(chosen);
    if (chosen && $(`lane-${active}`)) $("lanes").setAttribute("aria-activedescendant", `lane-${active}`);
    else $("lanes").removeAttribute("aria-activedescendant");
  };

  const axis = () => {
    const wanted = (to - from) / 7;
    const step = [60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000].find((s) => s >= wanted) ?? 7776000;
    const ticks = [];
    for (let time = Math.ceil(from / step) * step; time < to; time += step) {
      const label = utc(time);
      ticks.push(mark(make("span", "", step < 86400 ? label.slice(5, 16) : label.slice(0, 10)), time));
    }
    $("axis").replaceChildren(...ticks);
    // The lanes have a scroll bar, and the rows above them do not.
    const gutter = $("lanes").offsetWidth - $("lanes").clientWidth;
    for (const row of document.querySelectorAll(".overview, .axis")) row.style.paddingRight = `${gutter}px`;
    $("bands").replaceChildren(
      ...bands.map((band) => mark(make("span", `band ${band.kind}`), band.from, band.to)),
      ...lines.map((line) => mark(make("span", "line"), line.time)),
    );
    $("rows").style.height = `${shown.length * HEIGHT}px`;
    document.querySelector(".row.back").style.height = `${Math.max(shown.length * HEIGHT, $("lanes").clientHeight)}px`;
  };

  const overview = () => {
    const x = (time) => ((time - first) / (last - first)) * OVERVIEW;
    const add = (tag, attributes, title) => {
      const element = draw(tag, attributes);
      if (title) element.append(Object.assign(draw("title", {}), { textContent: title }));
      $("overview").append(element);
    };
    $("overview").replaceChildren();
    for (const band of bands) {
      const width = Math.max(1, x(band.to) - x(band.from));
      add("rect", { class: band.kind, x: x(band.from), y: 0, width, height: 60 }, `${NAMES[band.kind]} from ${utc(band.from)} to ${utc(band.to)}`);
    }
    const updated = attempts.filter((attempt) => attempt.succeeded).map((attempt) => attempt.ended).sort((a, b) => a - b);
    let path = "M0 58", column = -1;
    updated.forEach((time, index) => {
      if (Math.floor(x(time)) === column && index < updated.length - 1) return;
      column = Math.floor(x(time));
      path += `H${column}V${58 - ((index + 1) / lanes.length) * 54}`;
    });
    const steps = attempts.filter((attempt) => attempt.drain !== null).flatMap((attempt) => [[attempt.drain, 1], [attempt.ended, -1]]);
    steps.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    // The highest number in each column, so that a short one is not lost.
    const out = new Array(OVERVIEW + 1).fill(0);
    let level = 0, at = 0, most = 1;
    for (const [time, change] of steps) {
      const next = Math.floor(x(time));
      for (; at < next; at += 1) out[at + 1] = level;
      level += change;
      out[at] = Math.max(out[at], level);
      most = Math.max(most, level);
    }
    let area = "M0 60";
    out.forEach((number, place) => { if (number !== out[place - 1]) area += `H${place}V${60 - (number / most) * 24}`; });
    add("path", { class: "out", d: `${area}H${OVERVIEW}V60Z` }, `at most ${most} nodes out of service at a time`);
    add("path", { class: "count", d: `${path}H${OVERVIEW}` });
    const misses = new Set(attempts.filter((attempt) => attempt.failed).map((attempt) => Math.floor(x(attempt.ended))));
    for (const miss of misses) add("line", { class: "miss", x1: miss, x2: miss, y1: 48, y2: 60 });
    for (const line of lines) {
      add("line", { class: "step", x1: x(line.time), x2: x(line.time), y1: 0, y2: 60 }, `${line.kind} ${line.step ?? ""} ${utc(line.time)} ${line.message}`);
    }
    if (from > first || to < last) add("rect", { class: "view", x: x(from), y: 0, width: x(to) - x(from), height: 60 });
  };

  const table = (caption, header, rows) => {
    const element = make("table"), head = make("tr"), body = make("tbody");
    element.append(make("caption", "", caption));
    for (const cell of header) {
      const th = make("th", "", cell);
      th.scope = "col";
      head.append(th);
    }
    const top = make("thead");
    top.append(head);
    element.append(top);
    for (const cells of rows) {
      const row = make("tr");
      for (const cell of cells) row.append(make("td", "", cell));
      body.append(row);
    }
    element.append(body);
    return element;
  };
  const detail = () => {
    const parts = [make("h2", "", chosen.node)];
    for (const attempt of chosen.attempts) {
      const fields = make("dl", "fields");
      const field = (name, value) => { if (value) fields.append(make("dt", "", name), make("dd", "", value)); };
      const reached = (time, until) => (time === null ? "" : `${utc(time)}, ${span((until ?? attempt.ended) - time)}`);
      field("version", `${attempt.from} → ${attempt.to}`);
      field("canary step", attempt.step ? String(attempt.step) : "");
      field("result", attempt.result);
      field("message", attempt.message);
      field("started", utc(attempt.started));
      field("drain", reached(attempt.drain, attempt.drained));
      field("reboot", reached(attempt.drained, attempt.soak));
      field("soak", reached(attempt.soak, null));
      field("ended", utc(attempt.ended));
      field("boot before", attempt.before);
      field("boot after", attempt.after);
      parts.push(make("h3", "", `Attempt ${attempt.attempt}`), fields);
      if (attempt.pods.length > 0) {
        parts.push(table(`Pods: ${attempt.pods.length}`, ["Pod", "Owner", "Budgets", "Services", "Moved"], attempt.pods.map((pod) => [
          `${texts[pod[0]]}/${pod[1]}`, texts[pod[2]], texts[pod[3]], texts[pod[4]], texts[pod[5]],
        ])));
      }
      if (attempt.running.length > 0) {
        parts.push(table(`Running after the soak: ${attempt.running.length}`, ["Pod"], attempt.running.map((pod) => [pod])));
      }
    }
    $("detail").replaceChildren(...parts);
  };

  const choose = (index) => {
    if (index < 0 || index >= shown.length) return;
    chosen = shown[index];
    const box = $("lanes");
    if (index * HEIGHT < box.scrollTop) box.scrollTop = index * HEIGHT;
    if ((index + 1) * HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = (index + 1) * HEIGHT - box.clientHeight;
    detail();
    draws();
  };
  const filter = () => {
    const wanted = $("search").value.trim().toLowerCase(), failed = $("failed").checked;
    shown = lanes.filter((lane) => (!failed || lane.failed) && (wanted === "" || text(lane).includes(wanted)));
    $("count").textContent = `${shown.length} of ${lanes.length} nodes`;
    $("lanes").scrollTop = 0;
    axis();
    draws();
  };
  const range = (start, stop) => {
    const width = Math.min(last - first, Math.max(60, stop - start));
    from = Math.min(Math.max(first, start), last - width);
    to = from + width;
    overview();
    axis();
    draws();
  };
  const zoom = (factor) => {
    const middle = (from + to) / 2, half = ((to - from) / 2) * factor;
    range(middle - half, middle + half);
  };
  const move = (share) => range(from + (to - from) * share, to + (to - from) * share);

  $("search").addEventListener("input", filter);
  $("failed").addEventListener("change", filter);
  $("in").addEventListener("click", () => zoom(0.5));
  $("out").addEventListener("click", () => zoom(2));
  $("back").addEventListener("click", () => move(-0.5));
  $("forth").addEventListener("click", () => move(0.5));
  $("all").addEventListener("click", () => range(first, last));
  $("lanes").addEventListener("scroll", () => requestAnimationFrame(draws));
  addEventListener("resize", () => { axis(); draws(); });
  $("lanes").addEventListener("keydown", (event) => {
    const index = chosen ? shown.indexOf(chosen) : -1;
    const page = Math.max(1, Math.floor($("lanes").clientHeight / HEIGHT) - 1);
    const next = {
      ArrowDown: index + 1, ArrowUp: Math.max(0, index - 1), PageDown: Math.min(shown.length - 1, index + page),
      PageUp: Math.max(0, index - page), Home: 0, End: shown.length - 1,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(next);
  });
  let drag = null;
  const timeAt = (event) => {
    const box = $("overview").getBoundingClientRect();
    return first + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (last - first);
  };
  $("overview").addEventListener("pointerdown", (event) => { drag = timeAt(event); $("overview").setPointerCapture(event.pointerId); });
  $("overview").addEventListener("pointerup", (event) => {
    const stop = timeAt(event);
    if (drag !== null && Math.abs(stop - drag) > (last - first) / 200) range(Math.min(drag, stop), Math.max(drag, stop));
    drag = null;
  });

  $("app").hidden = false;
  overview();
  filter();
})();
