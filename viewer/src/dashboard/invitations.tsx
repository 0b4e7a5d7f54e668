// Creates invitation links, and lists the links that are still open.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Copied } from "./copied";
import { admits, isLocal, links } from "./describe";
import type { Invitation, Status } from "../runtime/generated/federation-messages";
import { state } from "./state";
import { classes } from "../app/ui/classes";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./invitations.module.css";

const HOURS: readonly (readonly [number, string])[] = [
  [1, "1 hour"],
  [24, "1 day"],
  [7 * 24, "1 week"],
  [30 * 24, "30 days"],
];

export function Invitations({ status }: { status: Status }) {
  const token = state.tokens.value[state.shown.value];
  const open = state.invitations.value;
  const shown = open.find((one) => one.digest === state.shown.value);
  return (
    <section class={classes(ui.panel, style.invite)} aria-label="Invite">
      <h2>Invite devices</h2>
      <New ended={status.done >= status.rounds} />
      {token && shown && <Link token={token} page={status.page} />}
      {open.length > 0 && (
        <>
          <h3>Open links</h3>
          <ul>
            {open.map((one) => (
              <Open key={one.digest} invitation={one} />
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function New({ ended }: { ended: boolean }) {
  const hours = useSignal(7 * 24);
  const single = useSignal(false);
  return (
    <form
      class={style.new}
      onSubmit={(event) => {
        event.preventDefault();
        void state.invite(hours.value, single.value ? 1 : null);
      }}
    >
      <label class={ui.field}>
        <span>Valid for</span>
        <select value={hours.value} onChange={(e) => (hours.value = Number(e.currentTarget.value))}>
          {HOURS.map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <label class={style.check}>
        <input type="checkbox" checked={single.value} onChange={(e) => (single.value = e.currentTarget.checked)} /> one
        device only
      </label>
      <button
        class={ui.primary}
        type="submit"
        disabled={!state.reachable.value || state.busy.value.has("invite") || ended}
      >
        New link
      </button>
    </form>
  );
}

/**
 * Shows an invitation's link for a browser, also as a QR code for a phone, and its command for a desktop. If `page`
 * is false, the session serves no page for browsers, and only the command is shown.
 */
function Link({ token, page }: { token: string; page: boolean }) {
  const { browser, desktop } = links(state.base, token);
  return (
    <div class={style.link}>
      {page && <Code text={browser} />}
      <div class={style.texts}>
        {page && <Copied label="For a browser" text={browser} />}
        <Copied label="For a desktop with glgpt" text={desktop} />
        {!page && <p class={ui.dim}>This session serves no page for browsers: only desktops can join.</p>}
        {isLocal(state.base) && (
          <p class={ui.dim}>
            {"This address works on this machine only. To invite other devices, start "}
            <code>glgpt federate serve</code> with <code>--host</code> or <code>--url</code>.
          </p>
        )}
      </div>
    </div>
  );
}

const QUIET = 4; // width of the light border of a QR code, in modules (the squares of the code)

function Code({ text }: { text: string }) {
  const rows = useSignal<readonly string[]>([]);
  useEffect(() => {
    let current = true;
    rows.value = [];
    void state.qr(text).then((found) => {
      if (current && found) rows.value = found;
    });
    return () => {
      current = false;
    };
  }, [text]);
  if (!rows.value.length) return <div class={style.code} />;
  const side = rows.value.length + 2 * QUIET;
  const dark = rows.value.flatMap((row, y) =>
    Array.from(row, (module, x) => (module === "1" ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : "")),
  );
  return (
    <svg
      class={style.code}
      viewBox={`0 0 ${side} ${side}`}
      role="img"
      aria-label="QR code of the link for a browser"
      shape-rendering="crispEdges"
    >
      <rect width={side} height={side} fill="#fff" />
      <path d={dark.join("")} fill="#000" />
    </svg>
  );
}

function Open({ invitation }: { invitation: Invitation }) {
  const { digest } = invitation;
  const known = digest in state.tokens.value;
  const chosen = state.shown.value === digest;
  const ask = () => {
    state.question.value = {
      title: "Revoke this link?",
      text: "Devices can no longer join with this link, and devices that joined with it are disconnected.",
      action: "Revoke the link",
      run: () => state.revoke(digest),
    };
  };
  return (
    <li>
      <span>
        <code>{digest.slice(0, 6)}</code> {admits(invitation, state.now.value / 1000)}
      </span>
      <span class={ui.buttons}>
        {known && (
          <button class={ui.quiet} aria-pressed={chosen} onClick={() => (state.shown.value = chosen ? "" : digest)}>
            {chosen ? "Hide" : "Show"}
          </button>
        )}
        <button
          class={classes(ui.quiet, shared.danger)}
          disabled={!state.reachable.value || state.busy.value.has(`revoke ${digest}`)}
          onClick={ask}
        >
          Revoke
        </button>
      </span>
    </li>
  );
}
