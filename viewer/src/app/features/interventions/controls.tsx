// The controls for interventions: they ablate, scale, patch or steer parts of the model, or replace attention patterns.

import { useSignal } from "@preact/signals";
import { Scissors, Undo2 } from "lucide";
import { parseIntervention, scales, written } from "../../../runtime/engine/interventions";
import { interventions } from "../../stores/interventions";
import { engine } from "../../stores/model";
import { Button } from "../../ui/button";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import { interventionName } from "../../ui/names";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

/** Returns a description, in words, of an intervention on the model in use. `change` is its text form. */
export const named = (change: string) => interventionName(engine().model.names, change);

export function AblateButton({ part }: { part: string }) {
  const made = interventions.parts.value.find((each) => scales(each) && parseIntervention(each).part === part);
  const is = made !== undefined;
  return (
    <Button
      class={style.ablate}
      data-ablate={part}
      aria-pressed={is}
      off={interventions.busy.value && !is}
      title={
        is ? "Switch it on again" : "Ablate: switch this part off and generate the text again, to see what changes"
      }
      onClick={() => void interventions.toggle(made ?? part)}
    >
      <Icon of={is ? Undo2 : Scissors} /> {is ? "Restore" : "Ablate"} {named(part)}
    </Button>
  );
}

/** Returns the active interventions, except those of `kind` on `part`: a new intervention replaces these. */
const others = (part: string, kind: "pattern" | "patch" | "steering") =>
  interventions.parts.value.filter((each) => {
    const change = parseIntervention(each);
    return change.part !== part || !change[kind];
  });

const PATTERN_NAMES: Record<string, string> = {
  uniform: "all earlier tokens equally",
  previous: "the previous token",
  first: "the first token",
};

/** Shows a menu for the attention pattern of a head, or of all heads of a layer: unchanged, or a fixed pattern. */
export function LooksAt({ part }: { part: string }) {
  const { patterns = [] } = engine().model.manifest;
  const made = interventions.parts.value
    .map(parseIntervention)
    .find((change) => change.part === part && change.pattern);
  if (!patterns.length) return null;
  return (
    <label class={ui.inline} title="Replaces the attention pattern and generates the text again, to see what changes">
      Attends to
      <select
        value={made?.pattern ?? ""}
        onChange={(e) => {
          const pattern = e.currentTarget.value;
          void interventions.set([...others(part, "pattern"), ...(pattern ? [written({ part, pattern })] : [])]);
        }}
      >
        <option value="">(unchanged)</option>
        {patterns.map((name) => (
          <option key={name} value={name}>
            {PATTERN_NAMES[name] ?? name}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Shows the controls for interventions on a block; `token` is the position that a patch changes. */
export function AblateButtons({ block, token }: { block: number; token: number }) {
  return (
    <div class={classes(ui.buttons, style.parts)}>
      {engine()
        .model.names.partsOf(block)
        .map((part) => (
          <AblateButton key={part} part={part} />
        ))}
      {engine().model.tokenizer && <Patch block={block} token={token} />}
      {engine().model.tokenizer && <Steer block={block} />}
    </div>
  );
}

const STRENGTHS = [-1, 0, 0.5, 2, 4, 8];

/**
 * Shows a menu for an intervention's factor: 0 switches a part off, 2 doubles what the part adds to the residual
 * stream. When steering, the factor multiplies the direction.
 */
export function Strength({ of }: { of: string }) {
  const change = parseIntervention(of);
  const known = [...new Set([...STRENGTHS, change.factor])].sort((a, b) => a - b);
  return (
    <select
      aria-label={`Strength of ${named(of)}`}
      title={`Multiplies ${change.steering ? "the direction" : "what this part adds to the stream; 0 switches it off"}`}
      value={change.factor}
      onChange={(e) => {
        const other = written({ ...change, factor: Number(e.currentTarget.value) });
        void interventions.set(interventions.parts.value.map((each) => (each === of ? other : each)));
      }}
    >
      {known.map((factor) => (
        <option key={factor} value={factor}>
          × {factor}
        </option>
      ))}
    </select>
  );
}

/**
 * Shows the controls for activation patching. At one token, a patch replaces the output of a block, or of a part of the
 * block, with the output of the same block or part for another text.
 */
function Patch({ block, token }: { block: number; token: number }) {
  const text = useSignal("");
  const of = useSignal(""); // part of the block, such as "attn"; "": the whole block
  const { names } = engine().model;
  const [whole, ...parts] = names.partsOf(block) as [string, ...string[]];
  const part = of.value ? `${whole}.${of.value}` : whole;
  const patch = () =>
    void interventions.set([...others(part, "patch"), written({ part, patch: { position: token, text: text.value } })]);
  return (
    <details class={style.changing} data-part="patch">
      <summary>
        Patch token {token} in block {block}
      </summary>
      <p class={ui.dim}>
        At token {token}, replaces the block's output with the block's output for another text. If the model then makes
        the same prediction as for the other text, this output holds the difference between the two texts.
      </p>
      <label class={ui.field}>
        <span>Other text</span>
        <input
          value={text.value}
          placeholder="the same text with one word changed"
          onInput={(e) => (text.value = e.currentTarget.value)}
        />
      </label>
      <label class={ui.field}>
        <span>What to patch</span>
        <select value={of.value} onChange={(e) => (of.value = e.currentTarget.value)}>
          <option value="">the stream after the block</option>
          {parts.map((each) => (
            <option key={each} value={each.slice(whole.length + 1)}>
              what {names.title(each)} adds
            </option>
          ))}
        </select>
      </label>
      <Button off={!text.value || interventions.busy.value} onClick={patch}>
        Patch
      </Button>
    </details>
  );
}

/**
 * Shows the controls for steering, which adds a direction to a block's output. The direction is the output at the last
 * token of one text minus the output at the last token of another text.
 */
function Steer({ block }: { block: number }) {
  const towards = useSignal("");
  const away = useSignal("");
  const part = engine().model.names.partsOf(block)[0]!;
  const steer = () => {
    void interventions.set([
      ...others(part, "steering"),
      written({ part, factor: 2, steering: { towards: towards.value, away: away.value } }),
    ]);
  };
  const field = (title: string, of: typeof towards, hint: string) => (
    <label class={ui.field}>
      <span>{title}</span>
      <input value={of.value} placeholder={hint} onInput={(e) => (of.value = e.currentTarget.value)} />
    </label>
  );
  return (
    <details class={style.changing} data-part="steer">
      <summary>Steer block {block}</summary>
      <p class={ui.dim}>
        Adds a direction to the stream at every token: the difference between the stream at the end of two texts.
      </p>
      {field("Towards", towards, "I love")}
      {field("Away from", away, "I hate")}
      <Button off={!towards.value || interventions.busy.value} onClick={steer}>
        Steer
      </Button>
    </details>
  );
}
