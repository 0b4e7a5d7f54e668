// Worker: renders chat templates, after the message that it is ready.

import { rendered, type RenderJob } from "./interpreter";

addEventListener("message", ({ data }: MessageEvent<RenderJob>) => postMessage(rendered(data)));
postMessage("ready");
