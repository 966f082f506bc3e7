// Takes the place of the service worker that the page of llama-server leaves in a browser: the
// browser would go on showing that page, from its cache, where this server has the address now.

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(removeAll()));

async function removeAll() {
  await self.registration.unregister();
  for (const key of await caches.keys()) await caches.delete(key);
  for (const page of await self.clients.matchAll({ type: 'window' })) page.navigate(page.url);
}
