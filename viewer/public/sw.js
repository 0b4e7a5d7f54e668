// Caches the page for visits without a network. The page itself caches weights and other files that it checks by digest.
const CACHE = `glgpt shell ${new URL(self.registration.scope).pathname}`;

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const checked = /\.(bin|json)$/.test(url.pathname) && !url.pathname.endsWith("/manifest.json");
  if (request.method !== "GET" || url.origin !== self.location.origin || checked) return;
  event.respondWith(answer(request));
});

// Asks the network first, so that a new export is seen at once; falls back to the cache without a network.
async function answer(request) {
  let whole;
  try {
    const response = await fetch(request);
    if (!response.ok) return response;
    const body = await response.blob(); // complete before it is cached: an interrupted answer must not replace the old one
    const headers = new Headers(response.headers); // including its security policies
    headers.delete("Content-Encoding"); // the body is already decoded
    headers.delete("Content-Length");
    whole = new Response(body, { headers });
  } catch (error) {
    const kept = await caches.match(request, { cacheName: CACHE, ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
  try {
    await (await caches.open(CACHE)).put(request, whole.clone());
  } catch {
    // on a full disk, only visits without a network are lost
  }
  return whole;
}
