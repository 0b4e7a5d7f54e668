// A table of names and values.

import ui from "./shared.module.css";

export function Pairs({ of }: { of: readonly (readonly [string, string])[] }) {
  return (
    <table class={ui.pairs}>
      <tbody>
        {of.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
