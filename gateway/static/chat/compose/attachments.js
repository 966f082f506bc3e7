// Pictures and sounds that go with the next message, from a dialog, the clipboard or a drop.

import { signal } from '../../index.js';
import { props } from '../run/server.js';

const MAX_BYTES = 20 * 1024 * 1024;
const PICTURES = /^image\/(png|jpeg|gif|webp|bmp)$/;
const SOUNDS = /^audio\/(wav|x-wav|wave|mpeg|mp3)$/;

export const attachments = signal([]);
export const attachmentTrouble = signal('');
// Files that are being read: a message that is sent now would go without them.
export const nReading = signal(0);

// Returns what the chosen model takes, as the `accept` of a file field.
export function accepted() {
  const { vision, audio } = props.value?.modalities ?? {};
  return [vision && 'image/png,image/jpeg,image/gif,image/webp,image/bmp', audio && '.wav,.mp3']
    .filter(Boolean)
    .join(',');
}

function refusal({ type, size, name }) {
  const { vision, audio } = props.peek()?.modalities ?? {};
  if (!PICTURES.test(type) && !SOUNDS.test(type)) return `${name}: neither a picture nor a WAV or MP3 sound.`;
  if (PICTURES.test(type) && !vision) return 'This model does not see pictures.';
  if (SOUNDS.test(type) && !audio) return 'This model does not hear sounds.';
  if (size > MAX_BYTES) return `${name}: larger than 20 MB.`;
  return '';
}

const urlOf = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

// llama.cpp decodes no WebP, which is what most browsers copy.
async function readable(file) {
  if (file.type !== 'image/webp') return file;
  const picture = await createImageBitmap(file);
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  canvas.getContext('2d').drawImage(picture, 0, 0);
  return canvas.convertToBlob({ type: 'image/png' });
}

// Takes files; says which of them the model cannot take.
export async function attach(files) {
  attachmentTrouble.value = '';
  for (const file of files) {
    const why = refusal(file);
    if (why) {
      attachmentTrouble.value = why;
      continue;
    }
    nReading.value += 1;
    try {
      const kind = PICTURES.test(file.type) ? 'image' : 'audio';
      const url = await urlOf(await readable(file));
      attachments.value = [...attachments.value, { kind, name: file.name, url }];
    } catch {
      attachmentTrouble.value = `${file.name}: it could not be read.`;
    } finally {
      nReading.value -= 1;
    }
  }
}

export function detach(i) {
  attachments.value = attachments.value.filter((_, j) => j !== i);
}

export function takeAttachments() {
  const taken = attachments.value;
  attachments.value = [];
  attachmentTrouble.value = '';
  return taken;
}
