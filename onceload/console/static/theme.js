// The theme of Airflow's page around this one, which it keeps under this name.
try {
  const theme = window.localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the browser's theme is used.
}
