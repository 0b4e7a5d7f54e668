// Reads texels without blocking the page: copies them into a buffer, sets a fence and polls until the fence has passed.
//
// A fence costs Chrome half a millisecond on some GPUs, so reads requested in one task of the page share a fence.
//
// `getBufferSubData` waits for all commands that were issued before the call, even for those issued after the fence. It
// does not wait for a buffer of usage STREAM_READ that was written once and then fenced once, because Chrome copies
// such a buffer when the fence passes. Therefore, the small reads of a fence share one buffer, which is not used again.
// All reads and waits of a context share one `Reader`, so that nothing else sets a fence between a read and its fence.
//
// A wait for the result of an occlusion query needs no fence. Such waits are in the same queue: the device reaches the
// fences and queries (signals) in the order in which they were issued.

import { ContextLost, type Device } from "./device";
import { pause, yielder } from "./wait";

export const LOSS_REPORT_MS = 50; // maximum ms until the browser reports a lost context
const LATEST = 600_000; // ms after which a signal counts as lost; a step may take a minute on a slow device
const SMALL = 4096; // maximum bytes of a read that shares a buffer
const SHARED = 4 * SMALL; // bytes of a shared buffer
const KEPT = 1 << 20; // maximum bytes of a buffer that is kept for later reads
const SOON = 10; // ms; a signal that usually comes within this time is polled without sleeping
const MAX_SLEEP = 8; // maximum ms between two polls of a slow signal; each poll takes time from a software driver
const NUDGE = 0.3; // ms between two flushes; Chrome looks for signals after each flush, and otherwise only after 2 ms

interface Slot {
  buffer: WebGLBuffer;
  bytes: number;
}

/** A copy from `slot`, starting at byte `offset`, to `into`. */
interface Copy {
  slot: Slot;
  offset: number;
  into: Uint8Array;
}

/** Tells that the device has done earlier commands: a fence that passed, or an occlusion query that has a result. */
type Signal = { fence: WebGLSync } | { query: WebGLQuery };

/** Reads and waits that share a fence, or the wait for a query. */
interface Group {
  /** undefined: no fence is set yet, so more reads may join; null: the context was lost before it could be set. */
  signal: Signal | null | undefined;
  copies: Copy[];
  /** The buffer that small reads share. */
  shared: Slot | null;
  /** Bytes of `shared` that are reserved for reads. */
  filled: number;
  passed: Promise<void>;
  resolve: () => void;
  reject: (error: Error) => void;
}

const readers = new WeakMap<Device, Reader>();

export class Reader {
  private readonly free: Slot[] = [];
  private readonly queue: Group[] = [];
  /**
   * Running mean of the ms until a signal. They are counted from the previous signal, or from the read if no other read
   * was waiting. Signals that came together with the previous one do not count.
   */
  private between = 2;

  private readonly generation: number;

  private constructor(private readonly device: Device) {
    this.generation = device.generation;
  }

  /** Returns the reader of a device's current context. */
  static of(device: Device): Reader {
    let found = readers.get(device);
    if (found?.generation !== device.generation) readers.set(device, (found = new Reader(device)));
    return found;
  }

  /**
   * Copies a box of the first attachment of each framebuffer to `into`, one box after another. `box`: x, y, width and
   * height. The commands are issued before the call returns.
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
   * Resolves when the device has done everything issued before the fence. The fence is set by `close` or soon after the
   * current task. All calls before the fence is set return the same promise.
   */
  passed(): Promise<void> {
    return this.open().passed;
  }

  /** Sets the fence of the latest reads. Later reads get a new fence. */
  close(): void {
    const last = this.queue.at(-1);
    if (!last || last.signal !== undefined) return;
    const { gl } = this.device;
    const fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    last.signal = fence && { fence };
    gl.flush();
  }

  /** Resolves when a query that was issued has its result. This needs no fence. */
  answered(query: WebGLQuery): Promise<void> {
    this.close();
    const group = this.open();
    group.signal = { query };
    this.device.gl.flush();
    return group.passed;
  }

  /** Returns the group that new reads join. */
  private open(): Group {
    const last = this.queue.at(-1);
    if (last && last.signal === undefined) return last;
    let resolve = () => {};
    let reject: Group["reject"] = () => {};
    const passed = new Promise<void>((yes, no) => ([resolve, reject] = [yes, no]));
    passed.catch(() => {}); // callers that wait receive the error
    const group: Group = { signal: undefined, copies: [], shared: null, filled: 0, passed, resolve, reject };
    this.queue.push(group);
    void pause().then(() => {
      if (group.signal === undefined) this.close();
    });
    if (this.queue.length === 1) void this.poll();
    return group;
  }

  /** Reserves space in a buffer, which holds the texels of a read until they are copied to `into`. */
  private place(group: Group, into: Uint8Array): Copy {
    const bytes = into.byteLength;
    let copy: Copy;
    if (bytes <= SMALL && group.filled + bytes <= SHARED) {
      group.shared ??= this.allocated(SHARED, this.device.gl.STREAM_READ);
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
    return at < 0 ? this.allocated(bytes, this.device.gl.STREAM_COPY) : this.free.splice(at, 1)[0]!;
  }

  private allocated(bytes: number, usage: number): Slot {
    const { gl } = this.device;
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, buffer);
    gl.bufferData(gl.PIXEL_PACK_BUFFER, bytes, usage);
    return { buffer, bytes };
  }

  /** Keeps a group's buffers for later reads, except those larger than `KEPT` and the shared buffer. */
  private release({ copies, shared }: Group): void {
    for (const slot of new Set(copies.map((copy) => copy.slot))) {
      if (slot === shared || slot.bytes > KEPT) this.device.gl.deleteBuffer(slot.buffer);
      else this.free.push(slot);
    }
  }

  /** Waits for all signals. Rejects all waiting reads if the context is lost or anything throws. */
  private async poll(): Promise<void> {
    try {
      await this.passAll();
    } catch (error) {
      for (const each of this.queue.splice(0)) each.reject(error as Error);
    }
  }

  /**
   * Polls only the first signal, because signals come in order. Sleeps between polls of a slow signal, because constant
   * polling would occupy a software driver.
   */
  private async passAll(): Promise<void> {
    const { gl } = this.device;
    let since = performance.now();
    let flushed = since;
    let polled = false; // true if the first signal was polled before it came
    const yieldIfLate = yielder();
    await pause();
    for (let head = this.queue[0]; head; head = this.queue[0]) {
      const waited = performance.now() - since;
      if (head.signal === null || this.gone() || waited > LATEST) throw new ContextLost();
      if (head.signal && this.isDone(head.signal)) {
        if (polled) this.between += 0.2 * (Math.min(waited, 500) - this.between);
        polled = false;
        since = performance.now();
        await this.copy(head, yieldIfLate); // the group stays in the queue, so that `open` starts no second poll
        // When a context is lost, its fences pass and its buffers hold zeros before the page is notified.
        if (head.copies.some(({ into }) => blank(into))) await this.device.sleep(LOSS_REPORT_MS);
        if (this.gone()) continue;
        this.queue.shift();
        if ("fence" in head.signal) gl.deleteSync(head.signal.fence);
        this.release(head);
        head.resolve();
      } else {
        polled ||= Boolean(head.signal);
        await pause(); // browsers do not throttle a timer that is set after a pause
        const left = this.between - waited; // ms until the signal usually comes
        if (this.between > SOON || left < -2)
          await this.device.sleep(Math.min(MAX_SLEEP, Math.max(1, Math.abs(left) / 3)));
        else if (head.signal && performance.now() - flushed > NUDGE) {
          if (!this.gone()) gl.flush();
          flushed = performance.now();
        }
      }
    }
  }

  private isDone(signal: Signal): boolean {
    const { gl } = this.device;
    if ("fence" in signal) return gl.getSyncParameter(signal.fence, gl.SYNC_STATUS) === gl.SIGNALED;
    return Boolean(gl.getQueryParameter(signal.query, gl.QUERY_RESULT_AVAILABLE));
  }

  /** True if the context of this reader is lost. */
  private gone(): boolean {
    return this.device.lost || this.device.generation !== this.generation;
  }

  /** Copies a group's results: small ones together, because each copy waits; large ones with pauses for frames. */
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

/** True if all bytes are zero. `bytes` holds whole texels. */
function blank(bytes: Uint8Array): boolean {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4).every((word) => word === 0);
}
