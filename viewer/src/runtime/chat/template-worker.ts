// Worker: sends "ready", then renders chat templates.

import { rendered, type RenderJob } from "./interpreter";

addEventListener("message", ({ data }: MessageEvent<RenderJob>) => postMessage(rendered(data)));
postMessage("ready");
