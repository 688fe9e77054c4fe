// The navigation begins at the current page, not at its top.  Pages are whole without this.
document.addEventListener("DOMContentLoaded", () => {
  const room = document.querySelector(".sidebar-scroll");
  const current = room?.querySelector(".current-page > .reference");
  if (!current) return;
  const show = () => {
    const below = current.getBoundingClientRect().bottom - room.getBoundingClientRect().bottom;
    if (below > 0) room.scrollTo({ top: room.scrollTop + below + room.clientHeight / 3, behavior: "instant" });
  };
  show();
  document.getElementById("__navigation")?.addEventListener("change", show); // on a telephone it is hidden at first
});
