// Stores values such as the latest checkpoint in IndexedDB, so that a later visit can continue.

const NAME = "glgpt training";
const STORE = "runs";

function open(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new Error("IndexedDB is not available"));
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
        reject(new Error(transaction.error?.message ?? "the IndexedDB transaction failed"));
    });
  } finally {
    database.close();
  }
}

/** Stores an export's values by key. `place`, the export's address, separates exports on the same host. */
export class Store {
  constructor(private readonly place: string) {}

  private key(key: string): string {
    return `${this.place} ${key}`;
  }

  /** Writes a value completely or not at all. Throws if the browser stores nothing or its disk is full. */
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
