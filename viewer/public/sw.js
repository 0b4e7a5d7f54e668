// Service worker: caches the page itself for offline visits. The page caches weights and other verified files.
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

// Answers from the network, so that a new export is visible at once, or from the cache if the network fails.
async function answer(request) {
  let whole;
  try {
    const response = await fetch(request);
    if (!response.ok) return response;
    const body = await response.blob(); // an interrupted answer must not replace the cached one
    const headers = new Headers(response.headers); // including the security policies
    headers.delete("Content-Encoding"); // the body is decoded
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
    // a full disk only prevents offline visits
  }
  return whole;
}
