// Stores the latest checkpoint of each run in IndexedDB, so that a later visit can continue the run.

import { createStore, del, get, getMany, type UseStore } from "idb-keyval";

const RUNS = "kept runs"; // key of a map from a run's id to the time when the run was last stored
const LIVE_MS = 60_000; // without Web Locks, a run that was stored at most this many ms ago counts as open in a tab
const CLAIM_MS = 500; // maximum ms to wait for a run's lock, which a page that is being closed may still hold
const FULL =
  "its storage is full. The training continues; save the model before you leave, or free space: " +
  "delete site data in the browser's settings, or files on the disk";
const NONE = "it gives the page no storage, as in a private window. Save the model before you leave";

const connection = createStore("glgpt training", "runs");

/** Accesses the database. Throws an error with a message for the user if the browser stores nothing or is full. */
const database: UseStore = async (mode, work) => {
  const seen = { open: false };
  try {
    return await connection(mode, (store) => {
      seen.open = true;
      return work(store);
    });
  } catch (error) {
    const { name, message } = error as Partial<DOMException>;
    if (name === "QuotaExceededError") throw new Error(FULL);
    throw new Error(seen.open ? message || "IndexedDB failed" : NONE);
  }
};

/** Does `work` in one transaction: either all of it takes effect or nothing. */
const change = (work: (store: IDBObjectStore) => void) =>
  database(
    "readwrite",
    (store) =>
      new Promise<void>((resolve, reject) => {
        const { transaction } = store;
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new Error());
        work(store);
      }),
  );

type Times = Map<string, number>;

/** Stores an exported page's values by key. `place`, the page's address, separates the pages of one host. */
export class Store {
  private claimed = "";
  private release = () => {};

  constructor(private readonly place: string) {}

  private key(key: string): string {
    return `${this.place} ${key}`;
  }

  /** Writes a value completely or not at all. Throws if the browser stores nothing or its disk is full. */
  async keep(key: string, value: unknown): Promise<void> {
    await change((store) => store.put(value, this.key(key)));
  }

  async kept<T>(key: string): Promise<T | undefined> {
    return get<T>(this.key(key), database);
  }

  async forget(key: string): Promise<void> {
    await del(this.key(key), database);
  }

  /** Stores a checkpoint of a run, and the run itself if it is new. Deletes all other runs that no tab has open. */
  async keepRun(id: string, run: unknown, checkpoint: unknown): Promise<void> {
    await this.claim(id);
    const live = await this.live();
    await this.change(live, id, (store, times) => {
      if (!times.has(id)) store.put(run, this.key(`run ${id}`));
      store.put(checkpoint, this.key(`checkpoint ${id}`));
      times.set(id, Date.now());
    });
  }

  /** Claims and returns the latest stored run that no other tab has open and that `suits` accepts; null: none. */
  async takeRun<T extends { run: unknown; checkpoint: unknown }>(suits: (run: T["run"]) => boolean): Promise<T | null> {
    const times = (await this.kept<Times>(RUNS)) ?? new Map<string, number>();
    for (const [id] of [...times].sort(([, a], [, b]) => b - a)) {
      const before = this.claimed;
      if (!(await this.claim(id))) continue;
      const keys = [this.key(`run ${id}`), this.key(`checkpoint ${id}`)];
      const [run, checkpoint] = await getMany<unknown>(keys, database);
      if (run && checkpoint && suits(run)) return { run, checkpoint } as T;
      if (before !== id) this.leave();
    }
    return null;
  }

  /** Deletes this tab's run, and the runs that no tab has open. Without Web Locks, keeps recent runs: see `change`. */
  async forgetRuns(): Promise<void> {
    const own = this.claimed;
    this.leave();
    const live = await this.live();
    live?.delete(own);
    await this.change(live, "", () => {});
  }

  /**
   * Changes the list of runs. In the same transaction, deletes the runs that are neither `live` nor `own`. If `live` is
   * null, a run counts as live until `LIVE_MS` after it was last stored.
   */
  private async change(
    live: ReadonlySet<string> | null,
    own: string,
    work: (store: IDBObjectStore, times: Times) => void,
  ): Promise<void> {
    await change((store) => {
      const request = store.get(this.key(RUNS)) as IDBRequest<Times | undefined>;
      request.onsuccess = () => {
        const times = request.result ?? new Map<string, number>();
        for (const [id, time] of times) {
          if (id === own || live?.has(id) || (!live && Date.now() - time < LIVE_MS)) continue;
          store.delete(this.key(`run ${id}`));
          store.delete(this.key(`checkpoint ${id}`));
          times.delete(id);
        }
        work(store, times);
        store.put(times, this.key(RUNS));
      };
    });
  }

  private lock(id: string): string {
    return `glgpt run ${this.key(id)}`;
  }

  /**
   * Claims a run for this tab until the tab claims another run, leaves the run or is closed. Returns false if another
   * tab has the run open. Without Web Locks, always returns true.
   */
  private async claim(id: string): Promise<boolean> {
    if (this.claimed === id) return true;
    const locks = navigator.locks as LockManager | undefined;
    const got = await new Promise<(() => void) | null>((resolve) => {
      if (!locks) {
        resolve(() => {}); // a page from plain HTTP has no Web Locks
        return;
      }
      const hold = () => new Promise<void>((done) => resolve(done));
      locks
        .request(this.lock(id), { signal: AbortSignal.timeout(CLAIM_MS) }, hold)
        .catch((error: unknown) => resolve((error as Error).name === "SecurityError" ? () => {} : null));
    });
    if (!got) return false;
    this.leave();
    [this.claimed, this.release] = [id, got];
    return true;
  }

  private leave(): void {
    this.release();
    [this.claimed, this.release] = ["", () => {}];
  }

  /** Returns the runs that tabs have open; null: the browser has no Web Locks. */
  private async live(): Promise<Set<string> | null> {
    const locks = navigator.locks as LockManager | undefined;
    if (!locks) return null;
    const { held = [] } = await locks.query().catch((): LockManagerSnapshot => ({}));
    const start = this.lock("");
    return new Set(held.flatMap(({ name = "" }) => (name.startsWith(start) ? [name.slice(start.length)] : [])));
  }
}
