"""Inputs of ex2 and tanh whose result on sm_90 is one code below the correctly rounded one.

Measured on an H200 for all 2**16 inputs of f16 and bf16; the difference is never larger. Each text
holds one bit per input, from input 0 on, deflated and encoded in base 85.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt

_LOWER = {
    ("tanh", "f16"): (
        "c-rlkF^Jk=6o3_nZ2i|O$YpWqfrA$i1!-nex`d`fZd8O?g^G(qsg@gD#Nn=rqH6{tZb@g4fKmt!rFS4M5#hR~"
        "TZRz({^;4WSE17t%KP~J^L+pN-~0cU2jK+*2!i}G*2rVv97uoluPyfp9u8&y$v*VJ%=Ps=6~~7>KUBKEDYjer"
        "dq>}dvVK|B?&{2=0(&RWtB*r;57`(on*~2^&=18@k<f{yf2kD<_apw#f~d6s=n0$xV)GtI;G_lv1l9}iPGCJ|"
        ";Aw}}bn*h#F>&CruJIPJ88_q-LTqBQ7C){AUB+f>E@SZ_dow<eD~D&Uoaf}+f{8IKyOKI4Ox-Y+I}Br5C&%GL"
        "<;SZ2BwSfeo2in~Oq8bK?U*H2;c~Myi%pV~*sRnj_rE7+<<5lbPq>brZwZQ|4kbyFho`w*u3*l4T+ZyC7UuDn"
        "m)S*R5$P2_rz00<MeXA3O;pj^KA$vY^j5ynN5YMg|2B{nK^Js+AgTH*btH+ZdJQh~s?SCoN^~VZl2iyOE3z)M"
        "hT=4wf#dYe+g#S1UuNg=MWnq*7o*W<g4h~}3V1y6_xmnduT|;fdMN4xL2PS^qG|1~FW_8h*w%}{fqU`7mmU|-"
        "fj1K_!^OJhE%$VmIhw>8nSQ2UZpOBGfeg`nLDX)yW6m<kM&@XGw4y7icT1yAIfsP5XBo?7KRWE#3pvDME!HMZ"
        "aP7ZaD+q;9_28X5P<0+HL(eZGcT--wGF$J}?5?W${UW}vdMxk*gdhllAP9nB|BwAY_W#)bWB-r+KY}0#g8YyC"
        "1XcbmyZ"
    ),
    ("tanh", "bf16"): (
        "c-muN7zLwX6pVsVFbYNitwH^Ns(=QVVGRuOAj1AX1N(ml`48+5|FA#!BgfCrFK1JD+~Szws=&=^Csnp=T^qGB"
        "G&F40)yGD;nxUal(<XUNHlBIR;_=L$f)79B56J&#U|_~((P)f~f>AIEM!_f;1*2dTjDk@x3P!;w7zLyK|4}ds"
        "M!_f;1*2dT3_Sn<NX`E@"
    ),
    ("ex2", "f16"): (
        "c-rk)PiW#;7*{;xW)9232x2bnz_fU117bnUx!Sq7O%Lg1!EU6Eg%K|vhT5SAFQo<Bkp_Dl7mRorZO@iMLm}-!"
        "#s%9;ii>;P40{QznEl>M)O5!A)18?u3;FdkdEfW_-k-epqWwLG!-kFfgU}xq+Bbh9@?QO`-+Z=|$yKTE$Y!jZ"
        "t;xgPnmj|3CvGr#DE-NO4%g7aA;*0>E%VHb8#l(*99PsVy;&H_XBkbiLty4m!iAX>PT<}M+&zQF<HQ3baW02)"
        "t~)txm>br!v}w>BCXITp203srnnPDy`qn3lO+t52eMe4pj<aUSWT8}(7_&!|3HM>XNvJQ#ZS@7Ut@J5E(HP=X"
        "3zMfPhyqP;UP9KTXkp?M)658XVG?`WhWF`<W|9s63>EXJNN!)nA6;ce=DCV5$cee59(@R<9rJdc@yI<|ka_s@"
        "Xb<=cM^_0{h(iQjcCL7O;ZW`+(Dj_BY2gTN8QLSrau4ov0u-)zK2D<|lx3L*BxsstBjONc79lB$RhEs3VjGID"
        "Sh2z;!D`E5J5r8SmaFhrS*dZy$+s2m)okpz!X4C}#SY3(BC&(x+LLI6Yqg3dS}iWRzA@b>Trc_?h3Lk~&Eix6"
        "uBpP)lZ!y-@kL<qO-cx)I{N`$mIVQitrtg+{pfsdH@%ydykNn1T`9ju=JTg$iIh#3MrbY_Hc-=iHSn&4l_fM%"
        "*@Sfr`AE|33uU``Z+ADn19J?MghBI5CFu5Ms(7>RFPF>y<VuA_4_{-ev4cjVu=w~=s0%xPc+<DHDzgQ9d5ciP"
        "zEB#Pp!tr!QJzJ7c9vURJW0u4TR-6=^#S=vE^sxmwIpXL&6`;}X1SC^>ICgie((HG%wIG6e-?fXPcOOFnI9AX"
        "wQv6?VZ(+E8#W#SjBexqi2eib8`lFXdguKb|Mwcbf4}}e(s=Iky4*E6?)=E1LvHfSF_XpkN2EJp)%cdjwMuAa"
        "T*+zaj<o3T+_*cJWuVmiQr)WHM-)Q|t3&0DCAA@*ow}*CwV@U_)H-Df9z@jd5c`;DZBfB3j_9~uL!}#%o*E!y"
        "`ljVHY^p;y&8aIRbLmZsfwY-mB$8!cYQU#nYIkg_Pc}^>kdy<<xl{(sX;6$L&Wyt-Hl#XD64HslFuZ}`K?4R8"
        ")1WUUExChT$(!x&dDGq9Q2J~)n3gP`Gl+F}z0W~OX1kIv_)bEByf=6&xs3uuP|6(wjxU(LbAcEnvbWM6(y)2p"
        ";9|N9b&#ladsChHwN8EQV*l}F33PCszbwszhb3_e?rWDwvSNKK?9cOZr$qB>vVgB0p*|0{3-IQ7(9a!^w{(E#"
        "Q?h&sQny6Y*hN^9Kg2mouvqGY&IhqyVL_R)%OGVVRhFv`MgK~5S!BibOj}&8V&UJe#Ez3IWo*Z@+(G#nXUPBZ"
        "lPK3hhXCtQj%)o^EH*|c77MNGRdg8e`lN6jU7v0gZqS)Ptkt@XZZrxTC+H-AHV4{^FMw#5g59I%-929@n9YKs"
        "-$tuRs$?H&edArk+Zgt%0$~Mq!zQ_Xs;XL6eTQZkA07my;Q8DRI!r-F0JwEQsKdOL0_Y^bQwm&c_>=66D7KTa"
        ";`P%y&&L-eUnoq#_J>zsK%AXP-prxglRIw~r;5dca<a`K#ovy=!+&l4S&o06)6ykByRx6~l6}%6OpDjGDPbqe"
        "=vpZAz4Mvn&FIgbSa|;R-@l8A!7tz1pFZ4Nn5i9w-5cVGoOO18h`g=U=ajIsD-^gk8wpesgsYSkSLwW_=RHE8"
        "SYz3lSZj6a0#+;TjZ1DHEWPrAP$`APUr-eKYRj2l&$%!EfwN)5h7B7wM)(J9>q%t"
    ),
    ("ex2", "bf16"): (
        "c-muN7zLwX6pVsVFbYNiok0D6RDh7NNATG}tOf>#|NsAhIS)Yk807yj)PG?9-@yM5NHhMhV?X$zj=%ZA4?7TH"
        "V>suT@r-ln#xr})q@^1h8+)w{4fR?Xw$|&~lr7V4d2aKaIrE&whd&H<40dvsJ+pPSR_8n@D9+jjqw8~AYmspo"
        "8!8M$1EWzn3P!;w7zLwX6pVsVFbYP&C>RB!fEe(9WPk=VZ`;FV9-#I5`N2Z+|NkEVi#D+T2MQsOJ@W_q#vk&H"
        "Kll&);eSxaew@$ZBM=uJ?w7Inc(`3I?d)u`l(RD@8>^+IrJXr*EHpG|)zz%4E2FM$S-Nz|wn<SrGtSunJO2#w"
        "?R}PK&fGLxozBiYJ8Kn;jt`WsN5%%`sL&M+jHcjGFbYP&C>RB!VCVq=xu={l"
    ),
}


def lower(op: str, type: str) -> npt.NDArray[np.uint16]:
    """uint16 array: 1 for inputs whose result is one code lower, else 0."""
    bits = zlib.decompress(base64.b85decode(_LOWER[op, type]))
    return np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.uint16)
