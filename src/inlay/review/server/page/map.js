// The map of a stage on a canvas: one point for each image, coloured by its class.

const MARGIN = 12;
const REACH = 14;
const MOST_NAMES = 12;
const LONGEST_NAME = 20;
const LIFT = 14;
const NAME = 16;

export function colourOf(id, dark) {
  // Steps of the golden angle keep neighbouring ids apart.
  return `hsl(${((id * 137.508) % 360).toFixed(1)} ${dark ? "65% 64%" : "62% 42%"})`;
}

export class StageMap {
  constructor(canvas, onPick) {
    this.canvas = canvas;
    this.images = [];
    this.points = [];
    this.classes = [];
    this.named = [];
    this.current = null;
    this.picked = null;
    canvas.addEventListener("click", (event) => {
      const index = this.nearest(event.offsetX, event.offsetY);
      if (index !== null) {
        this.picked = index;
        this.draw();
        onPick(this.images[index], this.classes[index]);
      }
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  lay(images, points) {
    this.images = images;
    this.points = points;
  }

  colour(classes, named, current) {
    this.classes = classes;
    this.named = named;
    this.current = current;
    this.draw();
  }

  place([x, y]) {
    const width = this.canvas.clientWidth - 2 * MARGIN;
    const height = this.canvas.clientHeight - 2 * MARGIN;
    return [MARGIN + (width * (x + 1)) / 2, MARGIN + (height * (1 - y)) / 2];
  }

  nearest(left, top) {
    let best = null;
    let least = REACH * REACH;
    this.points.forEach((point, index) => {
      const [x, y] = this.place(point);
      const distance = (x - left) ** 2 + (y - top) ** 2;
      if (distance <= least) [best, least] = [index, distance];
    });
    return best;
  }

  draw() {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const radius = this.points.length > 3000 ? 2 : this.points.length > 600 ? 3 : 4.5;
    const faint = getComputedStyle(canvas).getPropertyValue("--faint");
    // Points of the class in view come last, on top of the others.
    const order = this.points.map((_, index) => index);
    order.sort((a, b) => (this.classes[a] === this.current) - (this.classes[b] === this.current));
    for (const index of order) {
      const id = this.classes[index];
      const [x, y] = this.place(this.points[index]);
      pen.globalAlpha = id === this.current ? 1 : 0.5;
      pen.fillStyle = id === null || id === undefined ? faint : colourOf(id, dark);
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fill();
    }
    this.drawNames(pen);
    if (this.picked !== null && this.points[this.picked]) {
      const [x, y] = this.place(this.points[this.picked]);
      pen.globalAlpha = 1;
      pen.lineWidth = 2;
      pen.strokeStyle = getComputedStyle(canvas).getPropertyValue("--ink");
      pen.beginPath();
      pen.arc(x, y, radius + 4, 0, 2 * Math.PI);
      pen.stroke();
    }
  }

  drawNames(pen) {
    const style = getComputedStyle(this.canvas);
    const few = this.named.length <= MOST_NAMES;
    const shown = this.named.filter(({ id }) => few || id === this.current);
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    pen.lineWidth = 4;
    pen.strokeStyle = style.getPropertyValue("--panel");
    pen.fillStyle = style.getPropertyValue("--ink");
    // Where names would cover each other the first one stays, and that of the class in view comes first.
    shown.sort((a, b) => (b.id === this.current) - (a.id === this.current));
    const taken = [];
    for (const { id, name } of shown) {
      const own = this.points.filter((_, index) => this.classes[index] === id).map((point) => this.place(point));
      if (!own.length) continue;
      pen.font = `${id === this.current ? 600 : 400} 13px ${style.fontFamily}`;
      const text = name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name;
      const half = pen.measureText(text).width / 2 + MARGIN / 2;
      const left = Math.min(Math.max(middle(own, 0), half), this.canvas.clientWidth - half);
      const top = Math.max(middle(own, 1) - LIFT, LIFT);
      if (taken.some((other) => Math.abs(other.left - left) < other.half + half && Math.abs(other.top - top) < NAME)) continue;
      taken.push({ left, top, half });
      pen.strokeText(text, left, top);
      pen.fillText(text, left, top);
    }
  }
}

function middle(places, axis) {
  const sorted = places.map((place) => place[axis]).sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}
