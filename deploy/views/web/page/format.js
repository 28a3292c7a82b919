'use strict';
// Numbers as people read them, and elements. Text from a run becomes text of the page, never markup.

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'class') made.className = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
  return made;
}

const known = (value) => typeof value === 'number' && Number.isFinite(value);

// 0.25 · 12.5 · 1,234 · 12.3k · 4.56M
function count(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9, 2) + 'G';
  if (size >= 1e6) return trim(value / 1e6, 2) + 'M';
  if (size >= 1e4) return trim(value / 1e3, 1) + 'k';
  return size >= 100 ? whole(value) : trim(value, size >= 10 ? 1 : 2); // a slow simulator does less than one step in a second
}

const trim = (value, digits) => String(Number(value.toFixed(digits)));
const whole = (value) => (known(value) ? Math.round(value).toLocaleString('en') : '–');

// four digits, whatever the size
function figure(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e4) return count(value);
  if (size >= 100) return trim(value, 1);
  if (size >= 1) return trim(value, 2);
  return size === 0 ? '0' : size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

function percent(share) {
  if (!known(share)) return '–';
  return (share > 0 && share < 0.095 ? trim(share * 100, 1) : Math.round(share * 100)) + '\u00a0%';
}

function bytes(value) {
  if (!known(value)) return '–';
  for (const [unit, size] of [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]]) {
    if (value >= size) return trim(value / size, value >= 10 * size ? 0 : 1) + '\u00a0' + unit;
  }
  return Math.round(value) + '\u00a0B';
}

function duration(seconds) {
  if (!known(seconds)) return '–';
  if (seconds < 120) return Math.round(seconds) + '\u00a0s';
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return minutes + '\u00a0min';
  const hours = Math.floor(minutes / 60);
  if (hours < 72) return hours + '\u00a0h\u00a0' + String(minutes % 60).padStart(2, '0') + '\u00a0min';
  return Math.floor(hours / 24) + '\u00a0d\u00a0' + (hours % 24) + '\u00a0h';
}

const clock = (time) => (known(time) ? new Date(time * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' }) : '–');
const words = (name) => name.replaceAll('_', ' ');
const last = (values) => { for (let i = (values || []).length - 1; i >= 0; i--) if (known(values[i])) return values[i]; return null; };
const some = (values) => (values || []).some(known);
const shown = (value) => (value === null || value === undefined ? '–' : typeof value === 'object' ? JSON.stringify(value) : String(value));
