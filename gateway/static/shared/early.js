// Runs before the first paint, so that a chosen theme does not flash in after the other one.

(() => {
  try {
    const root = new URL('./', document.baseURI).pathname;
    const theme = JSON.parse(localStorage.getItem(`llamapool:${root}:theme`));
    if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
  } catch {
    // No storage, or not our value: the theme of the system holds.
  }
})();
