// The host's dashboard: what the gateway's /v1/status says, once a second, and the host's calls. Names and reasons come
// from strangers: they are text, never markup.

const $ = (id) => document.getElementById(id);
const fragment = location.hash.slice(1);
const token = fragment.startsWith("host=") ? fragment.slice(5) : "";
let paused = false;
let last = null; // what the gateway said last
let asked = false; // whether the host has ended the session here

async function call(path, method = "GET", body = undefined) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 401 ? "This link is not the host's." : `The gateway answered ${answer.status}.`);
  return answer;
}

const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const bytes = (n) => (n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const field = document.createElement("td");
    if (cell instanceof Node) field.append(cell);
    else field.textContent = field.title = cell;
    line.append(field);
  }
  return line;
}

function device(m) {
  const remove = document.createElement("button");
  remove.textContent = "Remove";
  remove.onclick = () => {
    if (confirm(`Remove ${m.name}? Its updates will not count any more.`)) act(`v1/members/${m.number}`, "DELETE");
  };
  const said = m.aside ? `set aside: ${m.aside}` : m.said || "–";
  const name = m.connections ? m.name : `${m.name} (away)`;
  const speed = m.tokens_per_s ? m.tokens_per_s.toFixed(0) : "–";
  const trip = m.ping_ms ? `${m.ping_ms.toFixed(0)} ms` : "–";
  const figures = [name, m.device || "–", m.step, speed, trip, number(m.loss), number(m.norm)];
  const line = row([...figures, m.accepted, bytes(m.bytes_in), bytes(m.bytes_out), said, m.aside === "removed" ? "" : remove]);
  if (!m.connections) line.className = "dim";
  if (m.aside) line.className = "bad";
  return line;
}

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Both losses over the tokens trained up to each round. */
function draw(history) {
  let total = 0;
  const points = history.map((r) => ({ x: (total += r.tokens ?? 0), train: r.loss, held: r.validation_loss }));
  const values = points.flatMap((p) => [p.train, p.held]).filter((v) => typeof v === "number");
  const svg = $("curve");
  svg.replaceChildren();
  if (!values.length) return;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const spread = high - low || 1;
  const x = (v) => 50 + (735 * v) / (total || 1);
  const y = (v) => 15 + (195 * (high - v)) / spread;
  for (let i = 0; i <= 4; i++) {
    const value = low + (spread * i) / 4;
    svg.append(shape("line", { x1: 50, x2: 785, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: 44, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
  }
  svg.append(shape("text", { x: 785, y: 232, "text-anchor": "end" }, `${total.toLocaleString("en")} tokens`));
  for (const kind of ["train", "held"]) {
    const line = points.filter((p) => typeof p[kind] === "number");
    if (!line.length) continue;
    svg.append(shape("path", { class: kind, d: "M" + line.map((p) => `${x(p.x)} ${y(p[kind])}`).join("L") }));
    for (const p of line) svg.append(shape("circle", { class: kind, cx: x(p.x), cy: y(p[kind]), r: 2.5 }));
  }
}

function show(s) {
  last = s;
  paused = s.paused;
  $("name").textContent = `Training together: ${s.name}`;
  document.title = `${s.name}: ${s.done} of ${s.rounds} rounds`;
  $("rounds").max = s.rounds;
  $("rounds").value = s.done;
  $("pause").textContent = paused ? "Go on" : "Pause";
  const there = s.members.filter((m) => m.connections).length;
  $("now").textContent = paused ? "Paused" : `${there} of ${s.members.length} devices connected`;
  const last = s.history.at(-1);
  const facts = {
    Rounds: `${s.done} of ${s.rounds}`,
    "Open round": s.round ? `${s.round.number}${s.round.closed ? ", closed" : ""}` : "–",
    Answers: s.round ? `${s.round.answers} of ${s.round.asked}, quorum ${s.quorum}` : `quorum ${s.quorum}`,
    "Time left": s.round && !s.round.closed ? `${s.round.seconds_left.toFixed(0)} s` : "–",
    Strategy: s.strategy + (s.public ? ", clipped and trimmed" : ""),
    Parameters: s.parameters.toLocaleString("en"),
    Tokens: s.history.reduce((sum, r) => sum + (r.tokens ?? 0), 0).toLocaleString("en"),
    "Last loss": last ? number(last.loss) : "–",
    ...(s.epsilon === undefined ? {} : { "Privacy spent": `epsilon ${s.epsilon.toPrecision(3)} at delta ${s.delta}` }),
  };
  $("facts").replaceChildren(
    ...Object.entries(facts).map(([name, value]) => {
      const box = document.createElement("div");
      const term = document.createElement("dt");
      const said = document.createElement("dd");
      term.textContent = name;
      said.textContent = value;
      box.append(term, said);
      return box;
    }),
  );
  $("devices").replaceChildren(...s.members.map(device));
  draw(s.history);
  const sampled = s.history.findLast((r) => r.sample);
  if (sampled) {
    $("which").textContent = `after round ${sampled.round}`;
    $("sample").textContent = sampled.sample;
  } else if (s.history.length) $("sample").textContent = "The sample comes when the round is evaluated.";
}

async function act(path, method, body) {
  try {
    return await call(path, method, body);
  } catch (error) {
    $("now").textContent = error.message;
  }
}

/** Says that the session is over, where the gateway has gone with it. */
function over() {
  const how = last.done >= last.rounds ? "All rounds are done" : "The session was ended";
  $("now").textContent = `${how}: ${last.done} of ${last.rounds} rounds. The model is in the folder that glgpt federate serve was given.`;
  for (const name of ["pause", "end", "download", "invite"]) $(name).disabled = true;
  for (const button of $("devices").querySelectorAll("button")) button.disabled = true;
}

async function watch() {
  for (;;) {
    try {
      show(await (await call("v1/status")).json());
    } catch (error) {
      const gone = error instanceof TypeError;
      if (gone && last && (asked || last.done >= last.rounds)) return over();
      $("now").textContent = gone ? "The gateway does not answer; trying again…" : error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function host() {
  $("host").hidden = false;
  $("pause").onclick = () => act("v1/pause", "POST", { paused: !paused });
  $("end").onclick = async () => {
    if (confirm("End the session for all devices?")) asked = Boolean(await act("v1/session", "DELETE"));
  };
  $("invite").onclick = async () => {
    const asked = { hours: Number($("hours").value) || 168, ...($("once").checked ? { uses: 1 } : {}) };
    const made = await (await act("v1/invitations", "POST", asked))?.json();
    if (!made) return;
    $("url").value = new URL(`train/#view=train&tokens=1&together=${made.token}`, location.href.split("#")[0]).href;
    $("link").hidden = false;
  };
  $("copy").onclick = async () => {
    $("url").select();
    await navigator.clipboard?.writeText($("url").value).catch(() => {});
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1500);
  };
  $("download").onclick = async () => {
    const answer = await act("v1/model", "GET");
    if (!answer) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = "model.zip";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
  void watch();
}

if (token) host();
else if (fragment.includes(".")) {
  $("guest").hidden = false;
  $("now").textContent = "";
  $("open").href = `train/#view=train&tokens=1&together=${fragment}`;
  $("command").textContent = `glgpt federate join '${location.href}'`;
} else {
  $("nobody").hidden = false;
  $("now").textContent = "";
}
