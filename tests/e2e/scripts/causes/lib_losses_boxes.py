"""Box regression losses. Boxes are (cx, cy, w, h)."""

import math

import torch


def corners(box):
    cx, cy, w, h = box.unbind(-1)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def box_iou(pred, target):
    px1, py1, px2, py2 = corners(pred)
    tx1, ty1, tx2, ty2 = corners(target)
    iw = (torch.min(px2, tx2) - torch.max(px1, tx1)).clamp(min=0)
    ih = (torch.min(py2, ty2) - torch.max(py1, ty1)).clamp(min=0)
    inter = iw * ih
    union = pred[..., 2] * pred[..., 3] + target[..., 2] * target[..., 3] - inter
    return inter / union


def ciou_loss(pred, target):
    """Complete IoU: overlap, centre distance and aspect ratio (Zheng et al.)."""
    iou = box_iou(pred, target)

    px1, py1, px2, py2 = corners(pred)
    tx1, ty1, tx2, ty2 = corners(target)
    cw = torch.max(px2, tx2) - torch.min(px1, tx1)
    ch = torch.max(py2, ty2) - torch.min(py1, ty1)
    rho2 = (pred[..., :2] - target[..., :2]).pow(2).sum(-1)
    distance = rho2 / (cw.pow(2) + ch.pow(2))

    angle_t = torch.atan(target[..., 2] / target[..., 3])
    angle_p = torch.atan(pred[..., 2] / pred[..., 3])
    v = 4 / math.pi**2 * (angle_t - angle_p).pow(2)
    with torch.no_grad():
        alpha = v / (1 - iou + v)
    return 1 - iou + distance + alpha * v
