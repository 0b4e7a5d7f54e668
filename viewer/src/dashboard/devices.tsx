// The table of devices: the state of each device, and metrics of the updates that it sent.

import type { ComponentChildren } from "preact";
import { count, decimals, deviceState, ordered, size } from "./describe";
import type { MemberStatus, Status } from "../runtime/generated/federation-messages";
import { state } from "./state";
import { classes } from "../app/ui/classes";
import ui from "../app/ui/shared.module.css";
import shared from "./dashboard.module.css";
import style from "./devices.module.css";

const COLUMNS = [
  "Device",
  "State",
  "Loss",
  "Tokens/s",
  "Update norm",
  "Ping",
  "Accepted",
  "Uploaded",
  "Downloaded",
  "Last update",
  "",
] as const;

export function Devices({ status }: { status: Status }) {
  const all = ordered(status);
  const gone = all.filter((m) => m.aside === "removed");
  const shown = all.filter((m) => m.aside !== "removed");
  const connected = shown.filter((m) => m.connections).length;
  return (
    <section class={classes(ui.panel, shared.tabular, style.devices)} aria-label="Devices">
      <h2>
        Devices
        {shown.length > 0 && (
          <small>
            {connected} of {shown.length} connected
          </small>
        )}
      </h2>
      {shown.length > 0 ? (
        <Table devices={shown} status={status} />
      ) : (
        <p class={shared.empty}>Devices appear here when they join.</p>
      )}
      {gone.length > 0 && (
        <details>
          <summary>{gone.length} removed</summary>
          <Table devices={gone} status={status} />
        </details>
      )}
    </section>
  );
}

function Table({ devices, status }: { devices: readonly MemberStatus[]; status: Status }) {
  return (
    <table>
      <thead>
        <tr>
          {COLUMNS.map((name) => (
            <th key={name} scope="col">
              {name || <span class={style.hidden}>Action</span>}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {devices.map((device) => (
          <Row key={device.number} device={device} status={status} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ device, status }: { device: MemberStatus; status: Status }) {
  const { kind, text, progress } = deviceState(device, status);
  return (
    <tr class={style.device} data-state={kind} data-device={device.name}>
      <th scope="row">
        {device.name}
        <small>{[device.kind, device.device].filter(Boolean).join(", ")}</small>
      </th>
      <Cell of="State">
        <span class={style.state}>
          <i />
          {text}
        </span>
        {progress !== undefined && <progress value={progress} max={1} aria-label={text} />}
      </Cell>
      <Cell of="Loss">{decimals(device.loss)}</Cell>
      <Cell of="Tokens/s">
        {device.connections && device.tokens_per_s ? count(Math.round(device.tokens_per_s)) : "–"}
      </Cell>
      <Cell of="Update norm">{device.norm === null ? "–" : device.norm.toPrecision(3)}</Cell>
      <Cell of="Ping">{device.connections && device.ping_ms ? `${device.ping_ms.toFixed(0)} ms` : "–"}</Cell>
      <Cell of="Accepted">{device.accepted}</Cell>
      <Cell of="Uploaded">{size(device.bytes_in)}</Cell>
      <Cell of="Downloaded">{size(device.bytes_out)}</Cell>
      <Cell of="Last update">{kind === "aside" ? `set aside: ${device.aside}` : device.said || "–"}</Cell>
      <td class={style.action}>{kind !== "removed" && <Remove device={device} />}</td>
    </tr>
  );
}

/** Shows a table cell. On a phone, each row is a card, in which each cell also shows the name of its column. */
function Cell({ of, children }: { of: (typeof COLUMNS)[number]; children: ComponentChildren }) {
  return <td data-column={of}>{children}</td>;
}

function Remove({ device: { number, name } }: { device: MemberStatus }) {
  const ask = () => {
    state.question.value = {
      title: `Remove ${name}?`,
      text:
        "The device is disconnected, its later updates are rejected, and it cannot rejoin as the same device. " +
        "This cannot be undone.",
      action: "Remove the device",
      run: () => state.remove(number),
    };
  };
  return (
    <button
      class={classes(ui.quiet, shared.danger)}
      disabled={!state.reachable.value || state.busy.value.has(`remove ${number}`)}
      onClick={ask}
      aria-label={`Remove ${name}`}
    >
      Remove
    </button>
  );
}
