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
  let response;
  let body;
  try {
    response = await fetch(request);
    if (!response.ok) return response;
    body = await response.blob(); // whole: an answer that breaks off must not replace the one before
  } catch (error) {
    const kept = await caches.match(request, { cacheName: CACHE, ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
  try {
    await (await caches.open(CACHE)).put(request, new Response(body));
  } catch {
    // a full disk only means no visit without a network
  }
  return new Response(body);
}
