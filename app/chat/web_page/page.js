"use strict";
// Shows what the data says. Text only ever becomes text nodes: nothing a model wrote is read as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const make = (tag, classes, text) => {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const FATES = {
    accepted: "drafted, and kept by the target",
    rejected: "drafted, and refused by the target",
    discarded: "drafted, not tested",
    correction: "drawn by the target in place of the rejected token",
    bonus: "drawn by the target after every drafted token was accepted",
    plain: "drawn by the target in a round that drafted nothing",
    unknown: "the server does not say what became of it",
  };
  const KEPT = new Set(["accepted", "correction", "bonus", "plain", "unknown"]);
  const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
  const percent = (share) => { // a half becomes the even number, as in the app
    const near = Math.round(share * 100);
    return `${near - (share * 100 === near - 0.5 && near % 2)} %`;
  };
  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

  // ---- the chat: every token is there from the beginning, hidden until its round is due
  const steps = [];
  const parts = [];
  for (const reply of data.replies) {
    const prompt = make("div", "prompt", reply.prompt);
    const thought = make("div", "reply thinking");
    const text = make("div", "reply");
    by("chat").append(prompt, thought, text);
    for (const element of [prompt, thought, text]) parts.push({ element, from: reply.start });
    if (reply.given) text.append(make("span", "plain", reply.given));
    for (const round of reply.rounds) {
      const spans = round.tokens.map(([said, fate], place) => {
        const kept = KEPT.has(fate);
        const span = make("span", `token ${fate}`, kept ? said : said.replaceAll("\n", "↵"));
        span.hidden = true;
        span.about = { round, place };
        return span;
      });
      spans.forEach((span, place) => (round.thinking?.[place] ? thought : text).append(span));
      steps.push({ t: round.t, reply, round, spans });
    }
    if (reply.tail) {
      const tail = make("span", "plain", reply.tail);
      text.append(tail);
      parts.push({ element: tail, from: reply.end ?? data.duration });
    }
    const ending = make("div", "ending", reply.ending);
    by("chat").append(ending);
    parts.push({ element: ending, from: reply.end ?? data.duration });
  }
  steps.sort((one, other) => one.t - other.t);

  // ---- time
  let position = data.duration;
  let shown = 0;
  let playing = false;
  let before = 0;
  let speed = 1;

  function move(to) {
    position = Math.min(Math.max(to, 0), data.duration);
    while (shown < steps.length && steps[shown].t <= position) reveal(steps[shown++], true);
    while (shown > 0 && steps[shown - 1].t > position) reveal(steps[--shown], false);
    for (const part of parts) part.element.hidden = part.from > position;
    by("at").value = position;
    by("clock").value = `${position.toFixed(1)} / ${data.duration.toFixed(1)} s`;
    panel(shown ? steps[shown - 1] : null);
  }

  function reveal(step, visible) {
    for (const span of step.spans) span.hidden = !visible;
  }

  function follow() {
    const last = shown ? steps[shown - 1].spans.at(-1) : null;
    if (last) last.scrollIntoView({ block: "nearest" });
  }

  function play(wanted) {
    if (wanted && position >= data.duration) move(0);
    playing = wanted;
    by("play").textContent = playing ? "⏸" : "▶";
    if (playing) requestAnimationFrame((now) => { before = now; requestAnimationFrame(tick); });
  }

  function tick(now) {
    if (!playing) return;
    move(position + ((now - before) / 1000) * speed);
    before = now;
    follow();
    if (position >= data.duration) play(false);
    else requestAnimationFrame(tick);
  }

  function step(by_) {
    play(false);
    if (by_ > 0) move(shown < steps.length ? steps[shown].t : data.duration);
    else move(shown > 1 ? steps[shown - 2].t : 0);
    follow();
    if (shown) inspect(steps[shown - 1].spans.at(-1));
  }

  function nextRejection() {
    play(false);
    const found = steps.findIndex((s, i) => i >= shown && s.round.tokens.some(([, fate]) => fate === "rejected"));
    if (found < 0) return;
    move(steps[found].t);
    follow();
    inspect(steps[found].spans.find((span) => span.classList.contains("rejected")));
  }

  // ---- the panel
  function rows(list, entries) {
    for (const [name, value, means] of entries) {
      const term = make("dt", "", name);
      if (means) term.title = means;
      list.append(term, make("dd", "", value));
    }
  }

  function panel(at) {
    const place = by("panel");
    place.replaceChildren(make("h2", "", "Speculation"));
    const list = make("dl");
    const f = at ? at.round.figures : null;
    place.append(list);
    if (!f) return;
    const share = f.tested ? ` · ${percent(f.accepted / f.tested)}` : "";
    rows(list, [
      ["accepted / tested", `${f.accepted} / ${f.tested}${share}`, "drafted tokens the target kept / drafted tokens it judged"],
      ["τ", number(f.tau), "tokens emitted per target pass, the correction or bonus included"],
      ["α", number(f.alpha), "mean over tested tokens of β"],
      ["tokens/s, now", number(f.speed, 1), "rounds that ended in the last two seconds"],
      ["tokens/s, mean", number(f.mean, 1), "from the start of the first round"],
      ["tokens", String(f.tokens), "of the reply so far"],
      ["rounds", String(f.rounds), "each is one pass of the target"],
      ["wasted", String(f.wasted), "drafted tokens that are no part of the reply"],
      ["drafter, γ", `${at.round.drafter}, ${at.round.gamma}`, "of this round"],
    ]);
    f.positions.forEach((value, index) => {
      const bar = make("div", "bar");
      const ink = make("i");
      ink.style.width = `${value * 100}%`;
      bar.append(make("span", "", String(index + 1)), ink, make("span", "", percent(value)));
      bar.title = `accepted / tested at draft position ${index + 1}`;
      place.append(bar);
    });
  }

  // ---- the inspector
  let chosen = null;

  function inspect(span) {
    if (!span || !span.about) return;
    if (chosen) chosen.classList.remove("chosen");
    chosen = span;
    span.classList.add("chosen");
    const { round, place } = span.about;
    const [said, fate, id] = round.tokens[place];
    const about = by("inspector");
    about.replaceChildren(make("h2", "", "Inspector"));
    const title = make("div");
    title.append(make("b", fate, JSON.stringify(said)), ` ${fate}: ${FATES[fate]}`);
    const list = make("dl");
    rows(list, [["token", String(id)], ["round", `${round.n}, of ${round.rows} in the batch`]]);
    const tested = round.tested[place];
    const own = fate === "accepted" || fate === "rejected";
    if (own && tested) {
      const [p, q, u, beta] = tested;
      rows(list, [
        ["p", String(p), "the target's probability of the drafted token"],
        ["q", String(q), "the draft's probability of it"],
        ["u", String(u), "the uniform draw: kept if u·q < p"],
        ["verdict", `u·q = ${Number((u * q).toPrecision(4))} ${fate === "accepted" ? "<" : "≥"} p`],
        ["β", String(beta), "Σ min(p, q) at this position"],
      ]);
    }
    rows(list, [["draft · verify · rest", `${round.ms.join(" · ")} ms`]]);
    about.append(title, list);
    const others = own && round.refused ? round.refused[place] : [];
    if (others && others.length) table(about, "also refused here: p", others.map(([text, p]) => [text, p]));
    const drafted = round.tokens.filter(([, f]) => f === "accepted" || f === "rejected" || f === "discarded").length;
    const index = own ? place : place === drafted ? round.tested.length : -1;
    const detail = round.detail && round.detail[index];
    if (detail) {
      for (const name of ["target", "draft", "residual"]) if (detail[name].length) table(about, name, detail[name]);
    }
  }

  function table(place, name, entries) {
    place.append(make("h2", "", name));
    const body = make("table");
    for (const [text, p] of entries) {
      const row = make("tr");
      row.append(make("td", "", JSON.stringify(text)), make("td", "", String(p)));
      body.append(row);
    }
    place.append(body);
  }

  // ---- what is copied is what was kept
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (!selection || selection.isCollapsed) return;
    const fragment = selection.getRangeAt(0).cloneContents();
    fragment.querySelectorAll(".rejected, .discarded, .ending, [hidden]").forEach((element) => element.remove());
    fragment.querySelectorAll(".prompt, .reply").forEach((element) => element.append("\n\n"));
    event.clipboardData.setData("text/plain", fragment.textContent.replace(/\n+$/, ""));
    event.preventDefault();
  });

  // ---- controls
  function toggleTheme() {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "light" ? "dark" : "light";
  }

  function toggleRejected() {
    const hidden = document.body.classList.toggle("kept");
    by("rejected").setAttribute("aria-pressed", String(!hidden));
  }

  const keys = {
    " ": () => play(!playing),
    ".": () => step(1),
    ",": () => step(-1),
    x: nextRejection,
    r: toggleRejected,
    t: toggleTheme,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, button")) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  by("play").onclick = keys[" "];
  by("step").onclick = keys["."];
  by("back").onclick = keys[","];
  by("rejection").onclick = nextRejection;
  by("rejected").onclick = toggleRejected;
  by("theme").onclick = toggleTheme;
  by("at").max = data.duration;
  by("at").oninput = (event) => { play(false); move(Number(event.target.value)); };
  for (const value of SPEEDS) by("speed").append(new Option(`${value}×`, value, value === 1, value === 1));
  by("speed").onchange = (event) => { speed = Number(event.target.value); };
  by("chat").addEventListener("mouseover", (event) => inspect(event.target.closest(".token")));
  by("chat").addEventListener("click", (event) => inspect(event.target.closest(".token")));

  by("title").textContent = data.title;
  by("model").textContent = data.model ?? "";
  const untold = steps.some((s) => s.round.tokens.some(([, fate]) => fate === "unknown"));
  for (const [fate, means] of Object.entries(FATES)) {
    if (fate === "unknown" && !untold) continue;
    const item = make("li");
    const name = make("span", fate, fate);
    item.title = means;
    item.append(name);
    by("legend").append(item);
  }
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  move(data.duration);
})();
