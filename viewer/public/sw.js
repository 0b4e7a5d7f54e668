// Keeps the page itself for a visit without a network; weights and other checked files are kept by the page.
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

// The network's answer first, so that a new export is seen at once; the kept one where there is no network.
async function answer(request) {
  let whole;
  try {
    const response = await fetch(request);
    if (!response.ok) return response;
    const body = await response.blob(); // an answer that breaks off must not replace the one before
    const headers = new Headers(response.headers); // its policies among them
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
    // a full disk only means no visit without a network
  }
  return whole;
}
