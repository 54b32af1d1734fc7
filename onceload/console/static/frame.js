// Inside Airflow's page: its theme, and links that leave this frame, which a frame may not do by itself.
try {
  const theme = window.localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the browser's theme is used.
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.outside");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  window.parent.document.body.append(outer);
  outer.click();
  outer.remove();
});
