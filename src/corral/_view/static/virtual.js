// A long list over pages of unknown height, of which only those near the viewport are in the DOM.
//
// Theory of operation. The log of a run is cut into pages (a page is a range of bytes, see
// _runs/log_windows on the server). The list holds one run of neighboring pages between two spacers. The
// height of a page that was shown once is known; the others are estimated with the average of the
// first ones. Whenever pages are added, removed or resized, the first visible element stays where
// it is on the screen (browsers do not do this alike, so `overflow-anchor` is off). At the end of
// the list, the view follows the end as long as the reader does not scroll up.
//
// Memory: page data is cached for CACHED pages, elements for the visible pages and one viewport
// above and below. The sum of estimated heights is limited, because browsers limit the height of an
// element: a log of 2 GB scrolls with a shorter bar.

const CACHED = 12;
const FIRST_ESTIMATE = 2400;
const SETTLED = 6;
const MOST_PIXELS = 12e6;
const LOAD_DELAY = 40;
const NEAR_END = 48;

export class PageList {
  // scroller: the element that scrolls; load(n): the items of a page; show(element, items): fills
  // the element of a page; keyOf(item): its key; pageOf(item): its page; known: pages that are
  // loaded already, as [page, items].
  constructor(scroller, { pages, load, show, keyOf, pageOf, follows = true, known = [] }) {
    Object.assign(this, { scroller, load, show, keyOf, pageOf });
    this.pages = Math.max(1, pages);
    this.follows = follows;
    this.heights = new Map();
    this.estimate = FIRST_ESTIMATE;
    this.data = new Map(known);
    this.loading = new Map();
    this.late = new Map();
    this.mounted = new Map();
    this.wanted = [0, 0];
    this.before = document.createElement("div");
    this.after = document.createElement("div");
    this.content = document.createElement("div");
    this.content.className = "pages";
    scroller.replaceChildren(this.before, this.content, this.after);
    this.observer = new ResizeObserver(() => this.measured());
    this.observer.observe(scroller);
    this.onScroll = () => this.scrolled();
    scroller.addEventListener("scroll", this.onScroll, { passive: true });
    if (this.follows) this.toEnd();
    else this.update();
  }

  close() {
    this.closed = true;
    this.observer.disconnect();
    this.scroller.removeEventListener("scroll", this.onScroll);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
  }

  heightOf(page) {
    return this.heights.get(page) ?? this.estimated();
  }

  estimated() {
    return Math.max(24, Math.min(this.estimate, MOST_PIXELS / this.pages));
  }

  offset(page) {
    const estimate = this.estimated();
    let sum = page * estimate;
    for (const [each, height] of this.heights) if (each < page) sum += height - estimate;
    return sum;
  }

  pageAt(y) {
    let low = 0;
    let high = this.pages - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.offset(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  toEnd() {
    this.follows = true;
    this.goTo(this.pages - 1);
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toStart() {
    this.follows = false;
    this.goTo(0);
    this.scroller.scrollTop = 0;
  }

  // Shows a page at the top of the viewport.
  goTo(page) {
    const { clientHeight } = this.scroller;
    const top = this.offset(page);
    this.mount(this.pageAt(top - clientHeight), this.pageAt(top + 2 * clientHeight));
    if (!this.follows) this.scroller.scrollTop = top;
    this.loadWanted();
  }

  scrolled() {
    this.follows = this.isAtEnd();
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.update());
  }

  update() {
    if (this.closed) return;
    const { scrollTop, clientHeight } = this.scroller;
    this.mount(this.pageAt(scrollTop - clientHeight), this.pageAt(scrollTop + 2 * clientHeight));
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.loadWanted();
    }, LOAD_DELAY);
  }

  // Makes a change of the DOM; what the reader sees stays in its place.
  keepingPlace(change) {
    const anchor = this.follows ? null : this.firstVisible();
    const top = anchor?.getBoundingClientRect().top;
    change();
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    else if (anchor?.isConnected) {
      const moved = anchor.getBoundingClientRect().top - top;
      if (Math.abs(moved) >= 1) this.scroller.scrollTop += moved;
    }
  }

  firstVisible() {
    const { top } = this.scroller.getBoundingClientRect();
    for (const page of this.content.children) {
      if (page.getBoundingClientRect().bottom <= top) continue;
      for (const each of page.children) if (each.getBoundingClientRect().bottom > top) return each;
      return page;
    }
    return null;
  }

  mount(first, last) {
    this.wanted = [first, last];
    this.keepingPlace(() => {
      for (const [page, element] of this.mounted) {
        if (page >= first && page <= last) continue;
        this.observer.unobserve(element);
        element.remove();
        this.mounted.delete(page);
      }
      let next = this.content.firstElementChild;
      for (let page = first; page <= last; page += 1) {
        let element = this.mounted.get(page);
        if (!element) {
          element = this.makePage(page);
          this.content.insertBefore(element, next);
        } else next = element.nextElementSibling;
      }
      this.space();
    });
  }

  makePage(page) {
    const element = document.createElement("div");
    element.className = "page";
    element.dataset.page = page;
    this.mounted.set(page, element);
    this.fillPage(page);
    this.observer.observe(element);
    return element;
  }

  fillPage(page) {
    const element = this.mounted.get(page);
    const items = this.data.get(page);
    if (!element) return;
    if (items) {
      element.style.removeProperty("height");
      element.classList.remove("loading");
      this.show(element, items);
    } else {
      element.classList.add("loading");
      element.style.setProperty("height", `${this.heightOf(page)}px`);
    }
  }

  space() {
    const [first, last] = this.wanted;
    for (const [page, element] of this.mounted) {
      if (this.data.has(page)) this.heights.set(page, element.offsetHeight);
    }
    if (this.heights.size <= SETTLED && this.heights.size > 0) {
      const sum = [...this.heights.values()].reduce((a, b) => a + b, 0);
      this.estimate = Math.max(120, sum / this.heights.size);
    }
    const end = this.offset(this.pages) - this.offset(last + 1);
    this.before.style.setProperty("height", `${this.offset(first)}px`);
    this.after.style.setProperty("height", `${Math.max(0, end)}px`);
  }

  measured() {
    if (this.closed || this.measuring) return;
    this.measuring = true;
    requestAnimationFrame(() => {
      this.measuring = false;
      if (this.closed) return;
      this.keepingPlace(() => this.space());
      const { scrollTop, clientHeight } = this.scroller;
      const first = this.pageAt(scrollTop - clientHeight);
      const last = this.pageAt(scrollTop + 2 * clientHeight);
      if (first !== this.wanted[0] || last !== this.wanted[1]) this.update();
    });
  }

  loadWanted() {
    if (this.closed) return;
    for (let page = this.wanted[0]; page <= this.wanted[1]; page += 1) {
      if (!this.data.has(page) && !this.loading.has(page)) this.loadPage(page);
    }
  }

  async loadPage(page) {
    const work = this.load(page);
    this.loading.set(page, work);
    let items;
    try {
      items = await work;
    } catch (error) {
      items = [{ key: `error-${page}`, kind: "error", text: error.message }];
    }
    this.loading.delete(page);
    if (this.closed) return;
    this.data.set(page, items);
    const late = this.late.get(page);
    if (late) {
      this.late.delete(page);
      this.data.set(page, this.merged(items, late));
    }
    this.forget();
    this.keepingPlace(() => {
      this.fillPage(page);
      this.space();
    });
    this.onLoad?.(page);
  }

  // Drops the data of the pages that are farthest from the viewport.
  forget() {
    if (this.data.size <= CACHED) return;
    const middle = (this.wanted[0] + this.wanted[1]) / 2;
    const far = [...this.data.keys()].sort((a, b) => Math.abs(b - middle) - Math.abs(a - middle));
    for (const page of far) {
      if (this.data.size <= CACHED || this.mounted.has(page)) break;
      this.data.delete(page);
    }
  }

  merged(items, changes) {
    const all = new Map(items.map((item) => [this.keyOf(item), item]));
    for (const item of changes) all.set(this.keyOf(item), item);
    return [...all.values()].sort((a, b) => this.keyOf(a) - this.keyOf(b));
  }

  // Adds or changes items that a live run has sent.
  upsert(items) {
    const pages = Map.groupBy ? Map.groupBy(items, this.pageOf) : groupItems(items, this.pageOf);
    const grown = Math.max(this.pages, ...[...pages.keys()].map((page) => page + 1));
    const isNew = grown > this.pages;
    for (let page = this.pages; page < grown; page += 1) if (pages.has(page)) this.data.set(page, []);
    this.pages = grown;
    const changed = [];
    for (const [page, some] of pages) {
      if (this.data.has(page)) {
        this.data.set(page, this.merged(this.data.get(page), some));
        changed.push(page);
      } else if (this.loading.has(page)) this.late.set(page, [...(this.late.get(page) ?? []), ...some]);
    }
    this.forget();
    this.keepingPlace(() => {
      for (const page of changed) this.fillPage(page);
      this.space();
    });
    if (isNew) this.update();
  }

  nodes() {
    return this.content.querySelectorAll("*").length;
  }
}

function groupItems(items, keyOf) {
  const groups = new Map();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
}
