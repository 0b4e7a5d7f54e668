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

/** One export's own: `key` names what is kept, under the page's address. */
const place = (key: string) => `${new URL(".", document.baseURI).pathname} ${key}`;

/** Writes whole or not at all; throws where the browser keeps nothing, or its disk is full. */
export async function keep(key: string, value: unknown): Promise<void> {
  await act("readwrite", (store) => store.put(value, place(key)));
}

export async function kept<T>(key: string): Promise<T | undefined> {
  return (await act("readonly", (store) => store.get(place(key)) as IDBRequest<T | undefined>)) ?? undefined;
}

export async function forget(key: string): Promise<void> {
  await act("readwrite", (store) => store.delete(place(key)));
}
