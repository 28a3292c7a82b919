'use strict';
// Charts of a run. Each is made when it comes near the screen and redrawn when its data has changed, a few per frame.

const HARD_EVENTS = { abandoned: 'bad', failed: 'bad', restarted: 'bad', silent: 'warn', rollbacks: 'bad' };
const SECOND_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const FRAME_MS = 6; // of drawing, of the 16 that a frame has

const charts = new Map(); // by the element of the plot
const waiting = new Set(); // to be drawn
let zoom = null; // [from, to] on the x axis of all charts
let axis = 'steps';

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (!chart) continue;
    chart.near = entry.isIntersecting;
    if (chart.near) redraw(chart);
  }
}, { rootMargin: '300px' });

const sized = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.get(entry.target);
    if (chart && chart.plot) chart.plot.setSize(sizeOf(chart.place));
  }
});

// `read` gives {x, series: [{label, values, colour, kind}], bands: [[upper, lower, colour]]} or null; kind: line, thin, dashed, edge, points.
// `clicked`, if given, is called with the place on the x axis
function chart(title, read, format, events, clicked) {
  const legend = el('div', { class: 'legend' });
  const place = el('div', { class: 'plot', role: 'img', 'aria-label': title });
  const card = el('div', { class: 'card chart' }, el('h3', {}, title), legend, place);
  const made = { title, read, format: format || figure, events, clicked, legend, place, card, plot: null, near: false, hovered: false, shape: '' };
  charts.set(place, made);
  near.observe(place);
  sized.observe(place);
  return card;
}

function forgetCharts() {
  for (const made of charts.values()) {
    near.unobserve(made.place);
    sized.unobserve(made.place);
    if (made.plot) made.plot.destroy();
  }
  charts.clear();
  waiting.clear();
}

function redraw(made) {
  if (!waiting.size) requestAnimationFrame(drawSome);
  waiting.add(made);
}

function redrawAll() {
  for (const made of charts.values()) if (made.near || made.card.hidden) redraw(made); // what is hidden never comes near
}

function drawSome() {
  const until = performance.now() + FRAME_MS;
  for (const made of waiting) {
    waiting.delete(made);
    draw(made);
    if (performance.now() > until) break;
  }
  if (waiting.size) requestAnimationFrame(drawSome);
}

const sizeOf = (place) => ({ width: Math.max(place.clientWidth, 50), height: Math.max(place.clientHeight, 50) });
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

function draw(made) {
  const found = made.read();
  made.card.hidden = !found;
  if (!found) return;
  made.legend.replaceChildren(...found.series.filter((one) => one.kind !== 'edge' && one.label).map((one) =>
    el('span', {}, el('i', { class: one.colour + ' ' + one.kind }), one.label, ' ', one.kind === 'points' ? '' : el('b', {}, made.format(last(one.values))))));
  const shape = axis + found.series.map((one) => one.label + one.kind + one.colour).join('|');
  const data = [found.x, ...found.series.map((one) => one.values)];
  if (made.plot && made.shape === shape) {
    made.plot.setData(data, !zoom);
    if (zoom) made.plot.redraw();
  } else {
    if (made.plot) made.plot.destroy();
    made.plot = plotOf(made, found, data);
    made.shape = shape;
  }
  if (zoom) made.plot.setScale('x', { min: zoom[0], max: zoom[1] });
}

function plotOf(made, found, data) {
  const faint = colourOf('faint'), line = colourOf('grid');
  const grid = { stroke: line, width: 1 }, ticks = { stroke: line, width: 1, size: 4 };
  const font = '12px system-ui, sans-serif';
  const axes = [
    { stroke: faint, grid, ticks, font, space: 70, size: 28, values: (_, values) => values.map(axis === 'steps' ? count : duration),
      ...(axis === 'steps' ? {} : { incrs: SECOND_STEPS }) },
    { stroke: faint, grid, ticks, font, size: 54, values: (_, values) => values.map(made.format) },
  ];
  const series = [{}, ...found.series.map((one) => {
    const stroke = colourOf(one.colour || 'c0');
    const common = { label: one.label, stroke, spanGaps: true, points: { show: false } };
    if (one.kind === 'points') return { ...common, paths: () => null, points: { show: true, size: 8, fill: stroke, stroke: colourOf('card'), width: 1.5 } };
    if (one.kind === 'edge') return { ...common, stroke: 'transparent', width: 0 };
    if (one.kind === 'dashed') return { ...common, width: 1, dash: [5, 4] };
    return { ...common, width: one.kind === 'thin' ? 1 : 2, alpha: one.kind === 'thin' ? 0.65 : 1, points: { show: (u, index) => lonely(u.data[index]), size: 5, fill: stroke } };
  })];
  const bands = (found.bands || []).map(([upper, lower, colour]) => ({ series: [upper + 1, lower + 1], fill: translucent(colourOf(colour)) }));
  const options = {
    ...sizeOf(made.place), series, bands, axes, legend: { show: false }, padding: [8, 10, 0, 0],
    scales: { x: { time: false }, y: { range: rangeOf(found.floor) } },
    cursor: { sync: { key: 'run' }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
    hooks: { draw: [(u) => drawEvents(u, made)], setCursor: [(u) => showTip(u, made)], setSelect: [(u) => select(u)] },
  };
  made.tip = el('div', { class: 'tip', hidden: true });
  const plot = new uPlot(options, data, made.place);
  plot.over.append(made.tip);
  plot.over.addEventListener('dblclick', () => setZoom(null));
  if (made.clicked) {
    plot.over.classList.add('clickable');
    plot.over.addEventListener('click', (event) => made.clicked(plot.posToVal(event.offsetX, 'x'))); // uPlot stops that of a drag
  }
  // With matches(':hover') the browser would compute the styles again for each chart whenever the mouse moves.
  plot.over.addEventListener('pointerenter', () => { made.hovered = true; });
  plot.over.addEventListener('pointerleave', () => { made.hovered = false; });
  return plot;
}

const lonely = (values) => values.reduce((sum, value) => sum + (value == null ? 0 : 1), 0) < 3;
const translucent = (hex) => hex + '2e';

function rangeOf(floor) {
  return (_, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (floor !== undefined) low = Math.min(low, floor);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [floor !== undefined && low >= floor ? floor : low - room, high + room];
  };
}

function select(u) {
  if (u.select.width < 4) return;
  setZoom([u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')]);
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function setZoom(to) {
  zoom = to;
  for (const made of charts.values()) made.shape = zoom ? made.shape : '';
  redrawAll();
  document.dispatchEvent(new CustomEvent('zoomed'));
}

function setAxis(name) {
  axis = name;
  zoom = null;
  redrawAll();
  document.dispatchEvent(new CustomEvent('zoomed'));
}

function drawEvents(u, made) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = devicePixelRatio;
  for (const event of (made.events ? made.events() : [])) {
    const x = Math.round(u.valToPos(event[axis], 'x', true));
    ctx.strokeStyle = colourOf(HARD_EVENTS[event.kind] || (event.process === 'supervisor' ? 'faint' : 'warn'));
    ctx.globalAlpha = 0.7;
    ctx.setLineDash(event.process === 'supervisor' ? [2, 4] : []);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (event.process !== 'supervisor') {
      ctx.fillStyle = ctx.strokeStyle;
      ctx.fillRect(x - 3 * devicePixelRatio, bbox.top, 6 * devicePixelRatio, 5 * devicePixelRatio);
    }
  }
  ctx.restore();
}

function showTip(u, made) {
  const { left, idx } = u.cursor;
  made.tip.hidden = !made.hovered || left < 0 || idx === null;
  if (made.tip.hidden) return;
  const at = u.posToVal(left, 'x');
  const rows = [el('b', {}, axis === 'steps' ? whole(at) + ' steps' : duration(at))];
  u.series.forEach((one, index) => {
    if (!index || !one.label || one.stroke() === 'transparent') return;
    const value = nearest(u.data[0], u.data[index], idx);
    if (known(value)) rows.push(el('div', {}, one.label + ' ' + made.format(value)));
  });
  const close = (made.events ? made.events() : []).filter((event) => Math.abs(u.valToPos(event[axis], 'x') - left) < 5);
  for (const event of close.slice(0, 4)) rows.push(el('div', { class: event.process === 'supervisor' ? '' : 'event' }, event.process + ' ' + words(event.kind) + ': ' + event.text));
  made.tip.replaceChildren(...rows);
  const wide = u.over.clientWidth;
  made.tip.style.left = left > wide / 2 ? 'auto' : left + 12 + 'px';
  made.tip.style.right = left > wide / 2 ? wide - left + 12 + 'px' : 'auto';
  made.tip.style.top = '6px';
}

// the value that is nearest on the x axis: joined tables have gaps
function nearest(x, values, at) {
  for (let reach = 0; reach < values.length; reach++) {
    for (const index of [at - reach, at + reach]) if (known(values[index])) return values[index];
  }
  return null;
}

function spark(values) {
  const points = (values || []).map((value, index) => [index, value]).filter(([, value]) => known(value));
  const ns = 'http://www.w3.org/2000/svg', svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  if (points.length > 1) {
    const high = Math.max(...points.map(([, value]) => value)) || 1, width = values.length - 1;
    const path = document.createElementNS(ns, 'path');
    path.setAttribute('d', points.map(([index, value], number) => (number ? 'L' : 'M') + ((index / width) * 100).toFixed(1) + ' ' + (26 - (Math.max(value, 0) / high) * 24).toFixed(1)).join(''));
    svg.append(path);
  }
  return svg;
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const made of charts.values()) made.shape = '';
  redrawAll();
});
