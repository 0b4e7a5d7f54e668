// Reading texels without stopping the page: into a buffer, a fence behind it, and asking until the fence is passed.
//
// A fence costs Chrome half a millisecond on some GPUs, and `getBufferSubData` waits for all commands before it, also those
// behind the fence. So what is asked for in one task of the page shares a fence, and its small reads share a buffer.

import { ContextLost, type Device } from "./device";
import { pause, yielder } from "./wait";

const HEARD = 50; // ms within which a page hears that its context is lost
const LATEST = 600_000; // ms after which a fence is taken for lost: a step may take a minute on a slow device
const SMALL = 4096; // bytes of a read that shares a buffer
const SHARED = 4 * SMALL; // bytes of that buffer

interface Slot {
  buffer: WebGLBuffer;
  bytes: number;
}

/** A read whose texels lie in `slot` from `offset` on, and go into `into`. */
interface Copy {
  slot: Slot;
  offset: number;
  into: Uint8Array;
}

/** Reads and waits that share a fence. */
interface Group {
  /** undefined: there is none yet, so that more may join; null: the context was lost when it was to be set. */
  fence: WebGLSync | null | undefined;
  copies: Copy[];
  /** The buffer of its small reads, and how much of it they fill. */
  shared: Slot | null;
  filled: number;
  passed: Promise<void>;
  resolve: () => void;
  reject: (error: Error) => void;
}

export class Reader {
  private readonly free: Slot[] = [];
  private readonly queue: Group[] = [];
  /** Milliseconds from one fence passed (or a first read) to the next, a running mean. */
  private between = 2;

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
    const group = this.open();
    const { slot, offset } = this.place(group, into);
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, slot.buffer);
    const [format, type] = integer ? [gl.RGBA_INTEGER, gl.UNSIGNED_INT] : [gl.RGBA, gl.FLOAT];
    for (let i = 0; i < framebuffers.length; i++) {
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, framebuffers[i]!);
      gl.readBuffer(gl.COLOR_ATTACHMENT0);
      gl.readPixels(...box, format, type, offset + (i * into.byteLength) / framebuffers.length);
    }
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
    return group.passed;
  }

  /**
   * Resolves when the device has done all that was issued, and what else is issued until the fence is set: by `close`, or
   * else soon after the current task. Calls before that get the same promise.
   */
  passed(): Promise<void> {
    return this.open().passed;
  }

  /** Sets the fence of what was asked for last: what is asked for from now on has another one. */
  close(): void {
    const last = this.queue.at(-1);
    if (!last || last.fence !== undefined) return;
    const { gl } = this.device;
    last.fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
  }

  /** The group that may be joined. */
  private open(): Group {
    const last = this.queue.at(-1);
    if (last && last.fence === undefined) return last;
    let resolve = () => {};
    let reject: Group["reject"] = () => {};
    const passed = new Promise<void>((yes, no) => ([resolve, reject] = [yes, no]));
    passed.catch(() => {}); // who waits hears of it
    const group: Group = { fence: undefined, copies: [], shared: null, filled: 0, passed, resolve, reject };
    this.queue.push(group);
    void pause().then(() => {
      if (group.fence === undefined) this.close();
    });
    if (this.queue.length === 1) void this.poll();
    return group;
  }

  /** Where a read goes until it is copied. */
  private place(group: Group, into: Uint8Array): Copy {
    const bytes = into.byteLength;
    let copy: Copy;
    if (bytes <= SMALL && group.filled + bytes <= SHARED) {
      group.shared ??= this.slot(SHARED);
      copy = { slot: group.shared, offset: group.filled, into };
      group.filled += bytes;
    } else {
      copy = { slot: this.slot(bytes), offset: 0, into };
    }
    group.copies.push(copy);
    return copy;
  }

  private slot(bytes: number): Slot {
    const at = this.free.findIndex((b) => b.bytes === bytes);
    if (at >= 0) return this.free.splice(at, 1)[0]!;
    const { gl } = this.device;
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, buffer);
    // Not STREAM_READ: Chrome then keeps shadow copies that it warns about and does not use.
    gl.bufferData(gl.PIXEL_PACK_BUFFER, bytes, gl.STREAM_COPY);
    return { buffer, bytes };
  }

  /** Passes all fences; rejects whatever still waits where the context is lost, or anything throws. */
  private async poll(): Promise<void> {
    try {
      await this.passAll();
    } catch (error) {
      for (const each of this.queue.splice(0)) each.reject(error as Error);
    }
  }

  /** Fences pass in order, so only the first is asked; mostly asleep, since asking would take a core from a software driver. */
  private async passAll(): Promise<void> {
    const { gl } = this.device;
    let since = performance.now();
    const yieldIfLate = yielder();
    await pause();
    for (let head = this.queue[0]; head; head = this.queue[0]) {
      const waited = performance.now() - since;
      if (head.fence === null || this.gone() || waited > LATEST) throw new ContextLost();
      if (head.fence && gl.getSyncParameter(head.fence, gl.SYNC_STATUS) === gl.SIGNALED) {
        this.between += 0.2 * (Math.min(waited, 50) - this.between);
        since = performance.now();
        await this.copy(head, yieldIfLate); // still in the queue, so that nobody else begins to ask
        // Fences of a lost context are passed and its buffers are zeros, before the page hears of the loss.
        if (head.copies.some(({ into }) => blank(into))) await this.device.sleep(HEARD);
        if (this.gone()) continue;
        this.queue.shift();
        gl.deleteSync(head.fence);
        this.free.push(...new Set(head.copies.map(({ slot }) => slot)));
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

  /** Copies what a group read: small reads at once, since each copy waits; large ones with frames between them. */
  private async copy({ copies, shared, filled }: Group, yieldIfLate: () => Promise<void>): Promise<void> {
    const small = new Uint8Array(filled);
    if (shared) this.fetch(shared, small);
    for (const { slot, offset, into } of copies) {
      if (slot === shared) {
        into.set(small.subarray(offset, offset + into.byteLength));
      } else {
        await yieldIfLate();
        if (this.gone()) return;
        this.fetch(slot, into);
      }
    }
    await yieldIfLate();
  }

  private fetch({ buffer }: Slot, into: Uint8Array): void {
    const { gl } = this.device;
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, buffer);
    gl.getBufferSubData(gl.PIXEL_PACK_BUFFER, 0, into);
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
  }
}

/** Whether all bytes, of whole texels, are zero. */
function blank(bytes: Uint8Array): boolean {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4).every((word) => word === 0);
}
