// What is under way outlives the page: the latest checkpoint, in IndexedDB.

const NAME = "glgpt training";
const STORE = "runs";

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new Error("IndexedDB is not to be had"));
  });
}

async function act<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await open();
  try {
    return await new Promise<T>((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = work(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () =>
        reject(new Error(transaction.error?.message ?? "IndexedDB gave up"));
    });
  } finally {
    database.close();
  }
}

/** Values by key of one export, which `place` (its address) tells from others on the same host. */
export class Store {
  constructor(private readonly place: string) {}

  private key(key: string): string {
    return `${this.place} ${key}`;
  }

  /** Writes whole or not at all; throws where the browser keeps nothing, or its disk is full. */
  async keep(key: string, value: unknown): Promise<void> {
    await act("readwrite", (store) => store.put(value, this.key(key)));
  }

  async kept<T>(key: string): Promise<T | undefined> {
    return (await act("readonly", (store) => store.get(this.key(key)) as IDBRequest<T | undefined>)) ?? undefined;
  }

  async forget(key: string): Promise<void> {
    await act("readwrite", (store) => store.delete(this.key(key)));
  }
}
