// Below this address lie all endpoints: with --api-prefix or behind a proxy it has a path.
export const ROOT = new URL('./', document.baseURI).href;
