// Service worker: caches one complete version of the page's HTML, manifest, scripts and styles for offline visits. The
// page's own code caches weights and other files.
// The cache `CACHE` holds the id of the complete version. The cache `${CACHE} ${id}` holds the files of that version.
const CACHE = `glgpt shell ${new URL(self.registration.scope).pathname}`;
let keeping = Promise.resolve();

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const name = request.method === "GET" ? fileOf(request.url) : null;
  if (name !== null) event.respondWith(answer(request, name));
});
// A page that has loaded completely asks the worker to cache the page's version. The worker answers true once the
// version is cached, false if caching failed.
self.addEventListener("message", (event) => {
  const { id, urls } = event.data;
  keeping = keeping.then(() => keep(id, urls)).catch(() => false);
  event.waitUntil(keeping.then((kept) => event.ports[0]?.postMessage(kept)));
});

// Returns the path of a page's file relative to the page's folder, or null for any other address.
function fileOf(url) {
  const { origin, pathname } = new URL(url);
  const scope = new URL(self.registration.scope);
  if (origin !== scope.origin || !pathname.startsWith(scope.pathname)) return null;
  const name = pathname.slice(scope.pathname.length).replace(/^index\.html$/, "");
  return name === "" || name === "manifest.json" || /^assets\/[^/]+$/.test(name) ? name : null;
}

// Answers from the network, so that a new export is visible at once, or from the cached version if the network fails.
async function answer(request, name) {
  // A cached asset cannot be outdated, because its name contains a hash of its contents.
  const asset = name.startsWith("assets/") && (await caches.match(request.url));
  if (asset) return asset;
  try {
    return await fetched(request);
  } catch (error) {
    const id = await whole();
    const kept = id && (await caches.match(new URL(name, self.registration.scope).href, { cacheName: `${CACHE} ${id}` }));
    if (kept) return kept;
    throw error;
  }
}

// Fetches a complete response. Throws if the transfer is interrupted.
async function fetched(request) {
  const response = await fetch(request);
  if (!response.ok) return response;
  const headers = new Headers(response.headers); // including the security policies
  headers.delete("Content-Encoding"); // the blob below is already decoded
  headers.delete("Content-Length");
  return new Response(await response.blob(), { headers });
}

// Returns the id of the cached version; undefined: none.
async function whole() {
  return (await caches.match("./whole", { cacheName: CACHE }))?.text();
}

// Caches version `id` and deletes the previous one, unless the server has another version by now. Returns true if `id`
// is cached. The first two of `urls` are the page and its manifest.
async function keep(id, urls) {
  if ((await whole()) === id) return true;
  const name = `${CACHE} ${id}`;
  try {
    const cache = await caches.open(name);
    for (const url of urls) {
      const response = (await cache.match(url)) ?? (await fetched(new Request(url, { cache: "no-cache" })));
      if (!response.ok) throw new Error(`${url}: ${response.status}`);
      await cache.put(url, response);
    }
    const [page, manifest] = await Promise.all(urls.slice(0, 2).map(async (url) => (await cache.match(url)).text()));
    if (!page.includes(`content="${id}"`) || JSON.parse(manifest).export_id !== id) throw new Error("another version");
    await (await caches.open(CACHE)).put("./whole", new Response(id));
  } catch {
    await caches.delete(name); // the disk is full, or the server's files are being replaced: the previous version stays
    return false;
  }
  for (const other of await caches.keys()) {
    if (other.startsWith(`${CACHE} `) && other !== name) await caches.delete(other);
  }
  return true;
}
