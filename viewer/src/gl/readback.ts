// Reading texels without stopping the page: into a buffer, a fence behind it, and asking until the fence is passed.

import { ContextLost, type Device } from "./device";
import { pause, yielder } from "./wait";

const HEARD = 50; // ms within which a page hears that its context is lost
const LATEST = 600_000; // ms after which a fence is taken for lost: a step may take a minute on a slow device

interface Slot {
  buffer: WebGLBuffer;
  bytes: number;
}

interface Copied {
  slot: Slot;
  into: Uint8Array;
}

interface Waiting {
  fence: WebGLSync | null;
  /** What is copied where once the fence is passed. */
  copied: Copied | null;
  resolve: () => void;
  reject: (error: Error) => void;
}

export class Reader {
  private readonly free: Slot[] = [];
  private readonly queue: Waiting[] = [];
  /** Milliseconds from one fence passed (or a first read) to the next, a running mean. */
  between = 2;

  private readonly generation: number;

  constructor(private readonly device: Device) {
    this.generation = device.generation;
  }

  /**
   * Reads the box (x, y, width, height) of each framebuffer's first attachment, one after another into `into`; the
   * commands are issued before it returns.
   */
  read(
    framebuffers: readonly WebGLFramebuffer[],
    box: readonly [number, number, number, number],
    integer: boolean,
    into: Uint8Array,
  ): Promise<void> {
    const { gl } = this.device;
    const bytes = into.byteLength;
    const at = this.free.findIndex((b) => b.bytes === bytes);
    const slot = at < 0 ? { buffer: gl.createBuffer(), bytes } : this.free.splice(at, 1)[0]!;
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, slot.buffer);
    // Not STREAM_READ: Chrome then keeps shadow copies that it warns about and does not use.
    if (at < 0) gl.bufferData(gl.PIXEL_PACK_BUFFER, bytes, gl.STREAM_COPY);
    const [format, type] = integer ? [gl.RGBA_INTEGER, gl.UNSIGNED_INT] : [gl.RGBA, gl.FLOAT];
    for (let i = 0; i < framebuffers.length; i++) {
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, framebuffers[i]!);
      gl.readBuffer(gl.COLOR_ATTACHMENT0);
      gl.readPixels(...box, format, type, (i * bytes) / framebuffers.length);
    }
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
    return this.passed({ slot, into });
  }

  /** Resolves when the device has done all that was issued. */
  passed(copied: Copied | null = null): Promise<void> {
    const { gl } = this.device;
    const fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
    return new Promise((resolve, reject) => {
      this.queue.push({ fence, copied, resolve, reject });
      if (this.queue.length === 1) void this.poll();
    });
  }

  /** Fences pass in order, so only the first is asked; mostly asleep, since asking would take a core from a software driver. */
  private async poll(): Promise<void> {
    const { gl } = this.device;
    let since = performance.now();
    const yieldIfLate = yielder();
    await pause();
    for (let head = this.queue[0]; head; head = this.queue[0]) {
      const waited = performance.now() - since;
      if (!head.fence || this.gone() || waited > LATEST) {
        for (const each of this.queue.splice(0)) each.reject(new ContextLost());
        return;
      }
      if (gl.getSyncParameter(head.fence, gl.SYNC_STATUS) === gl.SIGNALED) {
        this.between += 0.2 * (Math.min(waited, 50) - this.between);
        since = performance.now();
        if (head.copied) this.copy(head.copied);
        await yieldIfLate(); // many reads may come at once; still in the queue, so that nobody else begins to ask
        if (head.copied && blank(head.copied.into)) {
          // Fences of a lost context are passed and its buffers are zeros, before the page hears of the loss.
          await this.device.sleep(HEARD);
          if (this.gone()) continue;
        }
        this.queue.shift();
        gl.deleteSync(head.fence);
        if (head.copied) this.free.push(head.copied.slot);
        head.resolve();
      } else {
        await pause(); // a timer set from here is not among those that browsers slow down
        if (this.between > 3 || waited > this.between + 2) await this.device.sleep(1);
      }
    }
  }

  /** Whether the context that this reads from is lost. */
  private gone(): boolean {
    return this.device.lost || this.device.generation !== this.generation;
  }

  private copy({ slot, into }: Copied): void {
    const { gl } = this.device;
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, slot.buffer);
    gl.getBufferSubData(gl.PIXEL_PACK_BUFFER, 0, into);
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
  }
}

/** Whether all bytes, of whole texels, are zero. */
function blank(bytes: Uint8Array): boolean {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4).every((word) => word === 0);
}
