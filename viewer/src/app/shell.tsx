// The page's frame: header, tabs, progress while loading, errors, and the current view.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { playerFile } from "../document";
import { ADDITIONS, VIEWS } from "./features";
import { currentView } from "./router";
import { Link } from "lucide";
import { Icon } from "./ui/icon";
import { Mark } from "./ui/mark";
import type { Progress } from "../api";
import { generation } from "./stores/generation";
import { engine, models } from "./stores/model";
import { GROUPS, route, type Addition, type View } from "./stores/route";
import { countInWords } from "./ui/tools";
import { classes } from "./ui/classes";
import ui from "./ui/shared.module.css";
import frame from "./ui/band.module.css";
import style from "./shell.module.css";

const GROUP_NAMES = Object.keys(GROUPS) as (keyof typeof GROUPS)[];
const LONG_LOST = 5000; // ms without a graphics context after which the page suggests a reload

/** Renders the components that features add to one place of the page's frame. */
function Added({ place }: { place: Exclude<keyof Addition, "params"> }) {
  return (
    <>
      {ADDITIONS.map((each, i) => {
        const Part = each[place];
        return Part && <Part key={i} />;
      })}
    </>
  );
}

export function App() {
  const phase = models.phase.value;
  const manifest = generation.manifest.value;
  const has = ({ available }: View) => !available || (manifest !== undefined && available(manifest));
  const view = currentView();
  const known = manifest !== undefined || phase !== "loading"; // false: the model's tabs are not known yet
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => {
    // scrolls to the current tab, because not all tabs fit on a phone
    const [row, tab] = [tabs.current, tabs.current?.querySelector("[aria-current]")?.getBoundingClientRect()];
    // not scrollIntoView, which would also scroll the page back to its top
    if (row && tab) row.scrollLeft += tab.left + tab.width / 2 - row.getBoundingClientRect().left - row.clientWidth / 2;
  }, [phase, view]);
  return (
    <>
      <button class={style.skip} onClick={() => skip(view)}>
        Skip to {view.skipTo?.title ?? "the view"}
      </button>
      <div class={frame.band}>
        <header>
          <Mark />
          <h1 class={style.name}>glgpt</h1>
          {phase === "loading" && generation.recorded.value && <Loading recorded={Boolean(view.recorded)} />}
          {phase === "ready" && playerFile() !== null && (
            <button
              class={classes(ui.quiet, frame.action, frame.offer)}
              onClick={() => location.assign(location.pathname)}
            >
              Open another model
            </button>
          )}
          {phase === "ready" && <CopyLink />}
          <Added place="header" />
          <p class={classes(frame.about, style.about, (phase === "choosing" || view.introduced) && style.first)}>
            <About />
          </p>
        </header>
        <div class={style.tabs} key={known}>
          <nav class={style.views} aria-label="Views" ref={tabs} hidden={phase === "choosing"}>
            {GROUP_NAMES.map((group) => (
              <div key={group} role="group" aria-labelledby={`group-${group}`}>
                <small id={`group-${group}`}>{GROUPS[group]}</small>
                {VIEWS.filter((each) => each.group === group && has(each)).map((each) => (
                  <Tab key={each.name} of={each} current={each === view} />
                ))}
              </div>
            ))}
          </nav>
          <div class={style.shown} role="region" aria-label="Model">
            <Added place="corner" />
          </div>
        </div>
      </div>
      <Lost />
      <Added place="strip" />
      <UnknownLink />
      <main tabIndex={-1} key={known}>
        {phase === "failed" ? (
          <Failed />
        ) : phase === "choosing" ? (
          <Added place="choice" />
        ) : phase === "ready" ? (
          <>
            <view.component key={view.stays ? "" : engine().model.id} />
            <div class={style.dock}>
              <Added place="dock" />
            </div>
          </>
        ) : (
          <Coming view={view} />
        )}
      </main>
    </>
  );
}

function Tab({ of: { name, title, icon }, current }: { of: View; current: boolean }) {
  return (
    <button
      aria-current={current ? "page" : undefined}
      onClick={(e) => {
        e.currentTarget.scrollIntoView({ block: "nearest", inline: "center" });
        route.show(name);
      }}
    >
      <Icon of={icon} />
      {title}
    </button>
  );
}

/** Moves the focus past the buttons of the header: to the part of the view that `skipTo` names, or else to the view. */
function skip({ skipTo }: View): void {
  const part = skipTo && document.querySelector<HTMLElement>(skipTo.selector);
  (part ?? document.querySelector("main"))?.focus();
}

/** Lists settings in the link that this page does not know, for example those of another version of the page. */
function UnknownLink() {
  const unknown = route.unknown.value;
  if (!unknown.length) return null;
  const names = unknown.join(", ");
  return (
    <p class={style.unknown} role="status">
      The link sets {names}, which this page does not support. All other settings of the link are applied.{" "}
      <button class={ui.quiet} onClick={() => (route.unknown.value = [])}>
        Dismiss
      </button>
    </p>
  );
}

/** Shows a message while the graphics context is lost, and offers to reload the page after `LONG_LOST` ms. */
function Lost() {
  const long = useSignal(false);
  const lost = models.lost.value;
  useEffect(() => {
    long.value = false;
    if (!lost) return;
    const timer = setTimeout(() => (long.value = true), LONG_LOST);
    return () => clearTimeout(timer);
  }, [lost]);
  return (
    <p class={style.lost} role="status" hidden={!lost}>
      The browser lost the graphics context. Work continues when it is restored.
      {long.value && (
        <>
          {" "}
          After several losses, a browser may withhold the context for two minutes.{" "}
          <button onClick={() => location.reload()}>Reload the page</button>
        </>
      )}
    </p>
  );
}

/** Describes the model: its name, size and training data, and where it runs. */
function About() {
  const manifest = generation.manifest.value;
  if (models.phase.value === "choosing") {
    return (
      <>Runs your own model file in this browser, on your graphics card: you can inspect every number it computes.</>
    );
  }
  if (!manifest) return <>A language model that runs in your browser, on your graphics card.</>;
  const { model, parameters, trained_on } = manifest;
  const source = "source" in manifest && /^https?:/.test(manifest.source ?? "") ? manifest.source! : null;
  if (models.used.value !== "own") return <Other name={model} parameters={parameters ?? 0} />;
  const split =
    models.phase.value === "ready" && manifest.split ? (manifest.split.rest === null ? "movable" : "fixed") : null;
  return (
    <>
      <b>{model}</b> is a language model{parameters && ` of ${countInWords(parameters)} parameters`}
      {trained_on && `, trained on ${trained_on}`}.{" "}
      {split === "movable" ? (
        "It runs in your browser. With the slider below, you can move some of its blocks to a server; " +
        "that server could then read what you type."
      ) : split ? (
        "Its first blocks run in your browser. The other blocks run on a server, which could read what you type."
      ) : (
        <>
          It runs in this browser
          <span class={style.where}>, on your graphics card: you can inspect every number</span>, and nothing you type
          leaves this page.
        </>
      )}
      <Added place="about" />
      {source && (
        <>
          {" "}
          <a href={source} rel="noreferrer">
            Source
          </a>
        </>
      )}
    </>
  );
}

/** Describes a model other than the page's own: its name, its size, and the memory that it takes. */
function Other({ name, parameters }: { name: string; parameters: number }) {
  const { model, used } = engine();
  const { weight = 0, ...rest } = model.memory();
  const more = Object.values(rest).reduce((sum, bytes) => sum + bytes, 0);
  return (
    <>
      <b>{name}</b> is {used === "mine" ? "the model that you train here" : "a model from your files"}, with{" "}
      {countInWords(parameters)} parameters.{" "}
      {model.borrows ? "It shares its weights with the training" : `Its weights take ${mib(weight)} MiB`}; caches and
      working textures take {mib(more)} MiB. They are released when you switch back.
    </>
  );
}

function CopyLink() {
  const said = useSignal("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.value = "Copied";
    } catch {
      // The browser forbids writing to the clipboard, or offers no clipboard over plain http.
      said.value = "Copy the address from the address bar";
    }
    setTimeout(() => (said.value = ""), 2000);
  };
  return (
    <span class={style.copy}>
      <span class={ui.dim} role="status">
        {said.value}
      </span>
      <button
        class={classes(ui.quiet, frame.action)}
        onClick={() => void copy()}
        title="The link contains the prompt, its settings and the view"
      >
        <Icon of={Link} />
        Copy link
      </button>
    </span>
  );
}

const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1);

/** Returns a name for the work that the page waits for, and the share of the work that is done (undefined: unknown). */
function waitingFor({ done, total, compiled, shaders }: Progress): { what: string; share: number | undefined } {
  if (!total || done < total)
    return {
      what: playerFile() === null ? "Fetching the model" : "Uploading the weights",
      share: total ? done / total : 0,
    };
  if (compiled < shaders) return { what: "Compiling shaders", share: compiled / shaders };
  return { what: "Starting", share: undefined };
}

/**
 * Shows the main part of the page until the model can run. If the page has a recorded generation, shows the view's
 * `recorded` or `coming` component, or grey shapes if the view has neither component; the header then shows the
 * progress. If the page has none, shows the progress and grey shapes.
 */
function Coming({ view }: { view: View }) {
  const Shown = generation.recorded.value && (view.recorded ?? view.coming);
  return (
    <>
      {!generation.recorded.value && <Loading />}
      {Shown ? <Shown /> : <Skeleton view={view.name} />}
    </>
  );
}

/** Shows grey shapes until the view appears, so that the layout does not jump when it appears. */
function Skeleton({ view }: { view: string }) {
  return (
    <div class={style.skeleton} data-view={view} aria-hidden="true">
      <div>
        {Array.from({ length: 9 }, (_, i) => (
          <i key={i} />
        ))}
      </div>
      <div class={ui.panel}>
        <i />
        <i />
        <b />
      </div>
    </div>
  );
}

function Loading({ recorded = false }: { recorded?: boolean }) {
  const { done, total, cached, compiled, shaders, speed } = models.progress.value;
  const { what, share } = waitingFor(models.progress.value);
  return (
    <section class={style.loading} aria-label="Loading">
      <h2>
        {what}
        {recorded && <small> · the text below is a recording</small>}
      </h2>
      <p>
        {total
          ? `${mib(done)} of ${mib(total)} MiB`
          : playerFile() === null
            ? "Reading the manifest"
            : "Reading the programs"}
        {cached > 0 && <span class={style.more}> ({mib(cached)} from this browser's cache)</span>}
        {speed > 0 && <span class={style.more}>, {mib(speed)} MiB/s</span>}
        {compiled < shaders && (
          <span class={style.also}>
            , compiling shaders {compiled} of {shaders}
          </span>
        )}
      </p>
      <progress value={share} max={1} aria-label={what} />
    </section>
  );
}

function Failed() {
  return (
    <section class={classes(ui.panel, style.failed)} role="alert">
      <h2>The model could not be opened</h2>
      <p>{models.failure.value}</p>
      <button class={ui.primary} onClick={() => location.reload()}>
        Try again
      </button>
    </section>
  );
}
