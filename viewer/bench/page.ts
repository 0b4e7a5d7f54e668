// What the bench's tasks share: files of the folder that run.py serves, its ear, and the middle of several times.

async function fetched(name: string): Promise<Response> {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

export const json = async (name: string): Promise<unknown> => (await fetched(name)).json();
export const bytes = async (name: string): Promise<ArrayBuffer> => (await fetched(name)).arrayBuffer();

export async function post(kind: "progress" | "result" | "failure", what: unknown): Promise<void> {
  document.querySelector("pre")!.textContent = JSON.stringify(what, null, 1);
  await fetch(kind, { method: "POST", body: JSON.stringify(what) });
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}
